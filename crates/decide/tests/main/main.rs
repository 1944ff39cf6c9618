//! The documentation's promises about rules.

mod cel_page;
