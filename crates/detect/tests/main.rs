//! What detection does with whole records: see the modules.
