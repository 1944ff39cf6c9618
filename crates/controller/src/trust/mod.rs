//! Who is believed: bearer tokens of senders, and the certificate that we show them.
//!
//! # Guarantees
//! - A token counts only if the API server said so: authenticated, for one of our audiences, not
//!   expired. It is asked on first sight and again after ten minutes; never is a token believed
//!   past its expiry.
//! - While the API server can't be asked, a token that was reviewed stays good until its expiry; a
//!   new one is answered "not now", never "no".
//! - An agent speaks for the node that its token is bound to, and for no other.
//! - Neither tokens nor private keys are logged, kept on disk, or shown.

mod authority;
mod certificates;
mod gate;
mod tokens;

pub use authority::{AuthorityError, CA_BUNDLE, CA_SECRET, maintain};
pub use certificates::{CertificateError, Certificates};
pub use gate::{Caller, Denied, Gate};
pub use tokens::{ReviewError, Reviewed, TokenReviewer};
