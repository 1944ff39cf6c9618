//! A relay before an agent's socket that loses one answer: the call reaches the agent, the agent
//! answers it, and the caller's connection breaks off before it hears so.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Mutex, oneshot};
use tokio::task::JoinHandle;

/// Length of a frame's head, and the kind of frame that begins an answer (RFC 9113, 4.1 and 6.2).
const HEAD: usize = 9;
const HEADERS: u8 = 1;
/// An answer that does not come by then never does.
const PATIENCE: Duration = Duration::from_mins(1);

/// A running relay; it ends when it is dropped.
#[derive(Debug)]
pub struct Relay {
    socket: PathBuf,
    lost: oneshot::Receiver<()>,
    cut: Option<oneshot::Sender<()>>,
    listening: JoinHandle<()>,
}

/// What is done with the first answer: tell that it is here, then wait, then break off.
type First = Arc<Mutex<Option<(oneshot::Sender<()>, oneshot::Receiver<()>)>>>;

impl Relay {
    /// Listens at `socket` for calls to the agent at `target`.
    ///
    /// # Errors
    /// The socket can't be made.
    pub fn start(socket: &Path, target: &Path) -> anyhow::Result<Self> {
        let listener = UnixListener::bind(socket)
            .with_context(|| format!("listening at {}", socket.display()))?;
        let ((tell, lost), (cut, wait)) = (oneshot::channel(), oneshot::channel());
        let first: First = Arc::new(Mutex::new(Some((tell, wait))));
        let target = target.to_owned();
        let listening = tokio::spawn(async move {
            while let Ok((caller, _)) = listener.accept().await {
                let (target, first) = (target.clone(), Arc::clone(&first));
                tokio::spawn(async move {
                    // A connection that breaks off is what this is for.
                    pass(caller, &target, first).await.ok();
                });
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            lost,
            cut: Some(cut),
            listening,
        })
    }

    /// Where callers call.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// Waits until the agent has answered the first call; the caller waits for it still.
    ///
    /// # Errors
    /// No answer came within a minute.
    pub async fn answered(&mut self) -> anyhow::Result<()> {
        let lost = tokio::time::timeout(PATIENCE, &mut self.lost).await;
        lost.context("the agent does not answer")??;
        Ok(())
    }

    /// Breaks off the connection whose answer is held. Later ones are passed on as they are.
    pub fn cut(&mut self) {
        if let Some(cut) = self.cut.take() {
            cut.send(()).ok();
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.listening.abort();
    }
}

async fn pass(caller: UnixStream, target: &Path, first: First) -> anyhow::Result<()> {
    let agent = UnixStream::connect(target).await?;
    let (mut from_caller, to_caller) = caller.into_split();
    let (from_agent, mut to_agent) = agent.into_split();
    tokio::select! {
        copied = tokio::io::copy(&mut from_caller, &mut to_agent) => drop(copied?),
        answered = answers(from_agent, to_caller, first) => answered?,
    }
    Ok(())
}

/// Passes frames on until the first one that begins an answer, if that one is to be lost.
async fn answers(
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    first: First,
) -> anyhow::Result<()> {
    loop {
        let mut head = [0; HEAD];
        from.read_exact(&mut head).await?;
        if head[3] == HEADERS
            && let Some((tell, wait)) = first.lock().await.take()
        {
            tell.send(()).ok();
            wait.await.ok();
            return Ok(());
        }
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]);
        let mut payload = vec![0; usize::try_from(length)?];
        from.read_exact(&mut payload).await?;
        to.write_all(&head).await?;
        to.write_all(&payload).await?;
    }
}
