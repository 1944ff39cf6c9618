//! Who may use the API: a bearer token that the API server knows (TokenReview) whose user may do
//! this verb on this path (SubjectAccessReview, non-resource URL). The path is asked about as
//! `/warden/api/v1/…`: every authenticated user may `get` `/api/*` by the API server's own role
//! `system:discovery`, and that must not open ours. With `--insecure-local` one token, in a file
//! that only its owner can read.

use std::collections::HashMap;
use std::fmt;
use std::fs::OpenOptions;
use std::io::Write as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use axum::http::{HeaderMap, Method, StatusCode, header};
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::api::PostParams;
use kube::{Api, Client};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout};

use crate::trust::{ReviewError, Reviewed, TokenReviewer};

/// Name of the token file inside the store's folder.
const TOKEN_FILE: &str = "api-token";
/// What stands before a path when the API server is asked about it.
const URL_PREFIX: &str = "/warden";
/// How long an allowed access is remembered.
const ALLOWED_KEPT: Duration = Duration::from_mins(1);
/// Remembered accesses at most.
const MOST_KEPT: usize = 4_096;
/// Longest time for one review.
const PATIENCE: Duration = Duration::from_secs(10);

/// Why there is no token file.
#[derive(Debug, thiserror::Error)]
#[error("writing the API's token file {path}: {source}. Check that store.path is writable")]
pub struct LocalTokenError {
    path: PathBuf,
    source: std::io::Error,
}

impl LocalTokenError {
    /// Static name for metrics and messages.
    pub fn code(&self) -> &'static str {
        "api_token_file"
    }
}

/// Why a call is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) code: &'static str,
    pub(super) why: String,
}

/// Says who may do what.
#[derive(Clone)]
pub struct ApiAuth(Arc<Checks>);

enum Checks {
    Cluster {
        reviewer: Box<TokenReviewer>,
        client: Client,
        allowed: Mutex<HashMap<(String, String, String), Instant>>,
    },
    /// SHA-256 of the one token.
    Local([u8; 32]),
}

impl fmt::Debug for ApiAuth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match *self.0 {
            Checks::Cluster { .. } => "ApiAuth(cluster)",
            Checks::Local(_) => "ApiAuth(local)",
        })
    }
}

impl ApiAuth {
    /// Asks the API server. The reviewer must be one for the API server's own audience.
    pub fn cluster(reviewer: TokenReviewer, client: Client) -> Self {
        Self(Arc::new(Checks::Cluster {
            reviewer: Box::new(reviewer),
            client,
            allowed: Mutex::default(),
        }))
    }

    /// One new token, written to a file in `folder` that only the owner can read.
    ///
    /// # Errors
    /// [`LocalTokenError`].
    pub fn local(folder: &Path) -> Result<Self, LocalTokenError> {
        let path = folder.join(TOKEN_FILE);
        let token = new_token();
        write_token(&path, &token).map_err(|source| LocalTokenError { path, source })?;
        Ok(Self(Arc::new(Checks::Local(
            Sha256::digest(token.as_bytes()).into(),
        ))))
    }

    /// Whether the caller may do this; answers who it is.
    pub(super) async fn check(
        &self,
        headers: &HeaderMap,
        method: &Method,
        path: &str,
    ) -> Result<String, Refused> {
        let token = bearer(headers).ok_or_else(|| Refused {
            status: StatusCode::UNAUTHORIZED,
            code: "no_token",
            why: "the call has no bearer token; want header `Authorization: Bearer TOKEN`".into(),
        })?;
        match &*self.0 {
            Checks::Local(hash) => {
                // Hashes are compared, so that timing tells nothing about the token.
                let given: [u8; 32] = Sha256::digest(token.as_bytes()).into();
                let known = given == *hash;
                known.then(|| "local".to_owned()).ok_or_else(|| Refused {
                    status: StatusCode::UNAUTHORIZED,
                    code: "token_refused",
                    why: format!("the token is not the one in the file {TOKEN_FILE}"),
                })
            }
            Checks::Cluster {
                reviewer,
                client,
                allowed,
            } => {
                let reviewed = reviewer
                    .review(token)
                    .await
                    .map_err(|error| refused(&error))?;
                let key = (
                    reviewed.user.clone(),
                    verb(method),
                    format!("{URL_PREFIX}{path}"),
                );
                if !is_remembered(allowed, &key) {
                    ask(client, &reviewed, &key).await?;
                    remember(allowed, key);
                }
                Ok(reviewed.user.clone())
            }
        }
    }
}

fn refused(error: &ReviewError) -> Refused {
    let status = match error {
        ReviewError::Refused(_) => StatusCode::UNAUTHORIZED,
        ReviewError::Unavailable(_) => StatusCode::SERVICE_UNAVAILABLE,
    };
    Refused {
        status,
        code: error.code(),
        why: error.to_string(),
    }
}

/// The verb of a non-resource URL is the HTTP method in lower case.
fn verb(method: &Method) -> String {
    method.as_str().to_lowercase()
}

type Access = (String, String, String);

fn is_remembered(allowed: &Mutex<HashMap<Access, Instant>>, key: &Access) -> bool {
    let allowed = allowed.lock().unwrap_or_else(PoisonError::into_inner);
    allowed
        .get(key)
        .is_some_and(|at| at.elapsed() < ALLOWED_KEPT)
}

fn remember(allowed: &Mutex<HashMap<Access, Instant>>, key: Access) {
    let mut allowed = allowed.lock().unwrap_or_else(PoisonError::into_inner);
    if allowed.len() >= MOST_KEPT {
        allowed.clear();
    }
    allowed.insert(key, Instant::now());
}

async fn ask(
    client: &Client,
    reviewed: &Reviewed,
    (user, verb, path): &Access,
) -> Result<(), Refused> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.clone()),
            groups: Some(reviewed.groups.clone()),
            non_resource_attributes: Some(NonResourceAttributes {
                path: Some(path.clone()),
                verb: Some(verb.clone()),
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let api = Api::<SubjectAccessReview>::all(client.clone());
    #[expect(
        clippy::disallowed_methods,
        reason = "a question leaves nothing behind"
    )]
    let answer = timeout(PATIENCE, api.create(&PostParams::default(), &review)).await;
    let unavailable = |why: String| Refused {
        status: StatusCode::SERVICE_UNAVAILABLE,
        code: "access_unchecked",
        why: format!("whether {user} may {verb} {path} can't be checked now: {why}"),
    };
    let answer = answer.map_err(|_| unavailable("no answer in 10 s".to_owned()))?;
    let answer = answer.map_err(|error| unavailable(error.to_string()))?;
    if answer.status.is_some_and(|status| status.allowed) {
        return Ok(());
    }
    Err(Refused {
        status: StatusCode::FORBIDDEN,
        code: "not_allowed",
        why: format!(
            "{user} may not {verb} {path}; a ClusterRole with nonResourceURLs {path} and verb \
             {verb} would allow it"
        ),
    })
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

/// 160 random bits (two ULIDs' random parts).
fn new_token() -> String {
    format!("{}{}", ulid::Ulid::new(), ulid::Ulid::new()).to_lowercase()
}

fn write_token(path: &Path, token: &str) -> std::io::Result<()> {
    // A file of before might have other owners or modes; a new one is made with ours.
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(error),
        Ok(()) | Err(_) => {}
    }
    let mut file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)?;
    file.write_all(token.as_bytes())?;
    file.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[tokio::test]
    async fn only_the_token_of_the_file_opens_a_local_api() {
        let folder = tempfile::tempdir().unwrap();
        let auth = ApiAuth::local(folder.path()).unwrap();
        let again = ApiAuth::local(folder.path()).unwrap();
        let path = folder.path().join(TOKEN_FILE);
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let token = std::fs::read_to_string(&path).unwrap();
        let check = async |auth: &ApiAuth, value: Option<&str>| {
            let mut headers = HeaderMap::new();
            if let Some(value) = value {
                headers.insert(header::AUTHORIZATION, value.parse().unwrap());
            }
            auth.check(&headers, &Method::GET, "/api/v1/nodes")
                .await
                .map_err(|r| r.code)
        };
        let right = format!("Bearer {}", token.trim());
        assert_eq!(check(&again, Some(&right)).await, Ok("local".to_owned()));
        assert_eq!(
            check(&auth, Some(&right)).await,
            Err("token_refused"),
            "a start ago"
        );
        assert_eq!(check(&again, Some("Bearer no")).await, Err("token_refused"));
        assert_eq!(check(&again, None).await, Err("no_token"));
    }
}
