//! The listening socket: file, mode, and how many may be connected at once.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_stream::Stream;
use tonic::transport::server::{Connected, UdsConnectInfo};

use super::authority::Authority;

/// Callers connected at once at most; a node has some ten monitors. Others wait in the kernel.
const CONNECTIONS: usize = 64;
/// What every user may connect to, as the reference's socket; who may say what is decided later.
const MODE: u32 = 0o666;

/// The socket's file; removed when this goes, if it is still ours.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = std::fs::metadata(&self.path).is_ok_and(|about| about.ino() == self.inode);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "socket file not removed");
        }
    }
}

/// Removes a stale file, makes the folder, listens, opens the file to every user.
pub(super) fn bind(path: &Path) -> io::Result<(UnixListener, SocketFile)> {
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match std::fs::symlink_metadata(path) {
        Ok(about) if about.file_type().is_socket() => std::fs::remove_file(path)?,
        Ok(_) => {
            let why = "something that is no socket is in the way; remove it";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
    }
    let listener = UnixListener::bind(path)?;
    std::fs::set_permissions(path, Permissions::from_mode(MODE))?;
    let file = SocketFile {
        path: path.to_owned(),
        inode: std::fs::metadata(path)?.ino(),
    };
    Ok((listener, file))
}

/// Connections as they come, at most [`CONNECTIONS`] at once.
pub(super) fn incoming(
    listener: UnixListener,
) -> impl Stream<Item = io::Result<Counted>> + Send + 'static {
    let places = Arc::new(Semaphore::new(CONNECTIONS));
    let (sender, receiver) = tokio::sync::mpsc::channel(1);
    tokio::spawn(async move {
        while let Ok(place) = Arc::clone(&places).acquire_owned().await {
            let accepted = listener.accept().await;
            let counted = accepted.map(|(stream, _)| Counted {
                stream,
                authority: Authority::default(),
                _place: place,
            });
            if sender.send(counted).await.is_err() {
                return;
            }
        }
    });
    tokio_stream::wrappers::ReceiverStream::new(receiver)
}

/// A connection that gives its place back when it ends.
#[derive(Debug)]
pub(super) struct Counted {
    stream: UnixStream,
    authority: Authority,
    _place: OwnedSemaphorePermit,
}

impl Connected for Counted {
    type ConnectInfo = UdsConnectInfo;

    fn connect_info(&self) -> UdsConnectInfo {
        self.stream.connect_info()
    }
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let polled = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.authority.mend(&mut buffer.filled_mut()[before..]);
        polled
    }
}

impl AsyncWrite for Counted {
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
