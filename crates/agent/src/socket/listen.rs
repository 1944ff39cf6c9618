//! The listening socket: file, mode, and who may be connected ([`Places`] says).

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ffi::OsString;
use std::fs::{File, Metadata, OpenOptions, Permissions, TryLockError};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::{
    FileTypeExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _,
};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use rustix::net::{Shutdown, shutdown};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::mpsc::{Receiver, Sender};
use tokio::time::Instant;
use tokio_stream::Stream;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::server::Connected;

use super::authority::Authority;
use super::places::Places;
use super::turns::{Pools, Turns};
use crate::core::Core;
use crate::status::Status;

/// What every user may connect to, as the reference's socket; who may say what is decided later.
const MODE: u32 = 0o666;
/// How often a log line tells of connections that were turned away or ended.
const WARN_EVERY: Duration = Duration::from_secs(10);
/// How often it is looked whether the file is in its place.
const LOOK: Duration = Duration::from_secs(5);
/// Pause after an accept that failed (out of descriptors): the next one would too.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// The socket's file; removed when this goes, if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
    /// Released after the file is removed, or by the kernel however the process ends.
    lock: File,
}

impl SocketFile {
    /// Runs for ever: listens anew whenever the file went from its place, because nobody finds the
    /// socket any more that is listened on. Connections that stand are left alone.
    pub(super) async fn keep(
        &mut self,
        status: &Status,
        again: &Sender<UnixListener>,
    ) -> Infallible {
        loop {
            tokio::time::sleep(LOOK).await;
            let why = match self.listen_again() {
                Ok(None) => None,
                Ok(Some(listener)) => {
                    tracing::error!(path = %self.path.display(),
                        "the socket's file went from its place while the agent runs: monitors could \
                         not connect; it is there again");
                    // Gone only when nothing is served any more.
                    let _ = again.send(listener).await;
                    None
                }
                Err(error) => Some(format!("{} is gone: {error}", self.path.display())),
            };
            if let Some(why) = status.socket(why) {
                tracing::error!(why, "socket not served; it is tried again");
            }
        }
    }

    /// A new listener if the old one's file is not there.
    ///
    /// # Errors
    /// As [`bind`].
    fn listen_again(&mut self) -> io::Result<Option<UnixListener>> {
        let (there, locked) = (self.is_there(), self.is_locked());
        if there && locked {
            return Ok(None);
        }
        make_folder(&self.path)?;
        if !locked {
            self.lock = lock(&self.path)?;
        }
        if there {
            return Ok(None);
        }
        look_for_others(&self.path)?;
        let (listener, inode) = listen(&self.path)?;
        self.inode = inode;
        Ok(Some(listener))
    }

    fn is_there(&self) -> bool {
        std::fs::metadata(&self.path).is_ok_and(|about| about.ino() == self.inode)
    }

    /// Whether the lock that is held is the one that others would find.
    fn is_locked(&self) -> bool {
        let inode = |about: io::Result<Metadata>| about.ok().map(|about| about.ino());
        let held = inode(self.lock.metadata());
        held.is_some() && held == inode(std::fs::metadata(lock_of(&self.path)))
    }
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        if self.is_there()
            && let Err(error) = std::fs::remove_file(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

/// Makes the folder, listens, opens the file to every user, and only then puts it in its place,
/// over a stale one: whoever sees it can connect.
///
/// # Errors
/// If another agent serves it, something else is in the way, or the file can't be made.
pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    make_folder(path)?;
    look_for_others(path)?;
    let lock = lock(path)?;
    let (listener, inode) = listen(path)?;
    let file = SocketFile {
        path: path.to_owned(),
        inode,
        lock,
    };
    Ok((listener, file))
}

fn make_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), std::fs::create_dir_all)
}

/// The listener, and its file's inode. The lock is held.
fn listen(path: &Path) -> io::Result<(UnixListener, u64)> {
    let unready = unready(path);
    if look_for_others(&unready)? {
        std::fs::remove_file(&unready)?;
    }
    let listener = UnixListener::bind(&unready)?;
    std::fs::set_permissions(&unready, Permissions::from_mode(MODE))?;
    let inode = std::fs::metadata(&unready)?.ino();
    std::fs::rename(&unready, path)?;
    Ok((listener, inode))
}

fn lock_of(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    name.into()
}

/// Takes the lock beside the socket, which whoever serves it holds: the file alone does not tell a
/// live agent from a dead one. It stays when the agent goes, because a lock on a file that was
/// removed keeps nobody out.
fn lock(path: &Path) -> io::Result<File> {
    let name = lock_of(path);
    // Whoever can open it can hold it.
    let mut options = OpenOptions::new();
    options.create(true).write(true).truncate(false).mode(0o600);
    let lock = options.open(&name)?;
    match lock.try_lock() {
        Ok(()) => Ok(lock),
        Err(TryLockError::WouldBlock) => {
            let name = name.display();
            let why = format!(
                "another agent serves it and holds {name}; stop that one, or give this one another \
                 --socket"
            );
            Err(io::Error::new(io::ErrorKind::AddrInUse, why))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Whether a socket is there.
///
/// # Errors
/// If something else is.
fn look_for_others(path: &Path) -> io::Result<bool> {
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => Ok(true),
        Ok(_) => {
            let path = path.display();
            let why = format!("{path}, which is no socket, is in the way; remove it");
            Err(io::Error::new(io::ErrorKind::AlreadyExists, why))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

/// Where the socket is until it can be connected to: a name of the same length, because the
/// kernel's bound on it counts here too.
fn unready(path: &Path) -> PathBuf {
    let mut bytes = path.as_os_str().as_bytes().to_vec();
    if let Some(last) = bytes.last_mut() {
        *last = if *last == b'~' { b'-' } else { b'~' };
    }
    PathBuf::from(OsString::from_vec(bytes))
}

/// Connections as they come and have a place; `again`: listeners that replace the first one.
pub(super) fn incoming(
    mut listener: UnixListener,
    mut again: Receiver<UnixListener>,
    core: Arc<Core>,
) -> impl Stream<Item = io::Result<Connection>> + Send + 'static {
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    let lines = Arc::new(Lines {
        core,
        inner: Mutex::default(),
        pools: Pools::default(),
    });
    tokio::spawn(async move {
        loop {
            let look_at = lines.lock().places.look_at(Instant::now());
            let look = tokio::time::sleep_until(look_at.unwrap_or_else(Instant::now));
            let accepted = tokio::select! {
                () = sender.closed() => return,
                accepted = listener.accept() => accepted,
                Some(new) = again.recv() => {
                    listener = new;
                    continue;
                }
                () = look, if look_at.is_some() => {
                    lines.end_silent();
                    continue;
                }
            };
            let Ok((stream, _)) = accepted else {
                tokio::time::sleep(ACCEPT_PAUSE).await;
                continue;
            };
            if let Some(connection) = lines.enter(stream)
                && sender.send(Ok(connection)).await.is_err()
            {
                return;
            }
        }
    });
    ReceiverStream::new(receiver)
}

/// All connections.
#[derive(Debug)]
struct Lines {
    core: Arc<Core>,
    inner: Mutex<Inner>,
    pools: Pools,
}

#[derive(Debug, Default)]
struct Inner {
    places: Places,
    lines: BTreeMap<u64, Line>,
    /// Connections turned away or ended since the last log line, and when that was.
    untold: u64,
    told_at: Option<Instant>,
}

#[derive(Debug)]
struct Line {
    uid: u32,
    turns: Turns,
    /// The socket once more, so that it can be shut down from here.
    socket: OwnedFd,
}

impl Lines {
    fn enter(self: &Arc<Self>, stream: UnixStream) -> Option<Connection> {
        let about = stream.peer_cred().map(|peer| peer.uid());
        let about = about.and_then(|uid| Ok((uid, stream.as_fd().try_clone_to_owned()?)));
        let (uid, socket) = match about {
            Ok(about) => about,
            Err(error) => {
                tracing::warn!(%error, "connection turned away: nothing can be learnt of it");
                self.core.count(|counters| counters.turned_away += 1);
                return None;
            }
        };
        let mut inner = self.lock();
        let Some(entered) = inner.places.enter(uid, Instant::now()) else {
            self.core.count(|counters| counters.turned_away += 1);
            inner.tell(
                uid,
                "turned away: a call runs on each connection that its user may have",
            );
            return None;
        };
        if let Some(instead_of) = entered.instead_of {
            let why = "ended for another one: its user has as many as it may have";
            inner.tell(uid, why);
            self.end(&mut inner, instead_of);
        }
        let other = inner.lines.values().find(|line| line.uid == uid);
        let turns = Turns::new(&self.pools, uid, other.map(|line| &line.turns));
        let line = Line {
            uid,
            turns: turns.clone(),
            socket,
        };
        inner.lines.insert(entered.id, line);
        drop(inner);
        let peer = Peer(Arc::new(PeerInner {
            lines: Arc::clone(self),
            id: entered.id,
            uid,
            turns,
        }));
        Some(Connection {
            stream,
            authority: Authority::default(),
            greeted: false,
            peer,
        })
    }

    fn end_silent(&self) {
        let mut inner = self.lock();
        for (id, greeted) in inner.places.take_silent(Instant::now()) {
            if !greeted && let Some(line) = inner.lines.get(&id) {
                let uid = line.uid;
                inner.tell(uid, "ended: it did not say in time that it speaks HTTP/2");
            }
            self.end(&mut inner, id);
        }
    }

    /// Ends a connection that has no place any more: both sides read its end.
    fn end(&self, inner: &mut Inner, id: u64) {
        let Some(line) = inner.lines.remove(&id) else {
            return;
        };
        self.core.count(|counters| counters.ended += 1);
        // It may have ended by itself just now.
        let _ = shutdown(&line.socket, Shutdown::Both);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Logs what became of a connection, with how many there were since the last such line.
    fn tell(&mut self, uid: u32, why: &'static str) {
        self.untold += 1;
        if self.told_at.is_none_or(|told| told.elapsed() >= WARN_EVERY) {
            let count = std::mem::take(&mut self.untold);
            tracing::warn!(uid, count, "connection to the socket {why}");
            self.told_at = Some(Instant::now());
        }
    }
}

/// Whom a call comes from.
#[derive(Debug, Clone)]
pub(super) struct Peer(Arc<PeerInner>);

#[derive(Debug)]
struct PeerInner {
    lines: Arc<Lines>,
    id: u64,
    uid: u32,
    turns: Turns,
}

impl Peer {
    /// The user.
    pub(super) fn uid(&self) -> u32 {
        self.0.uid
    }

    /// What its calls wait for.
    pub(super) fn turns(&self) -> &Turns {
        &self.0.turns
    }

    /// A call begins; it ends when the answer is dropped.
    pub(super) fn begin(&self) -> Running {
        self.0.lines.lock().places.begin(self.0.id);
        Running {
            peer: self.clone(),
            answered: false,
        }
    }
}

/// A call that runs.
#[derive(Debug)]
pub(super) struct Running {
    peer: Peer,
    answered: bool,
}

impl Running {
    /// It ended with an answer.
    pub(super) fn answered(mut self) {
        self.answered = true;
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let Peer(peer) = &self.peer;
        if !self.answered {
            let core = &peer.lines.core;
            core.count(|counters| counters.calls_given_up += 1);
        }
        let mut inner = peer.lines.lock();
        inner.places.end(peer.id, self.answered, Instant::now());
    }
}

/// A connection that gives its place back when it ends.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    authority: Authority,
    greeted: bool,
    peer: Peer,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let Peer(peer) = &self.peer;
        let mut inner = peer.lines.lock();
        inner.places.leave(peer.id);
        inner.lines.remove(&peer.id);
    }
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        self.peer.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.authority.mend(&mut buffer.filled_mut()[before..]);
        if !self.greeted && self.authority.is_greeted() {
            self.greeted = true;
            let Peer(peer) = &self.peer;
            peer.lines.lock().places.greeted(peer.id);
        }
        polled
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
