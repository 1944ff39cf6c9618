//! Reads. Each uses a connection of its own and sees one whole commit.

use health_event::incident::{Incident, IncidentId};
use health_event::{FaultId, NodeName};

use crate::error::ReadError;
use crate::store::EventStore;
use crate::types::{
    AssertedFault, Consumer, IncidentFilter, LastOrder, Machine, Stats, StoredEvent, StoredFault,
    StoredTransition, TransitionsOf,
};

pub(crate) struct Readers;
impl EventStore {
    /// Open faults of a node that may have effects, oldest first.
    ///
    /// # Errors
    /// [`ReadError`]; so for all reads.
    pub fn open_faults(&self, node: &NodeName) -> Result<Vec<StoredFault>, ReadError> {
        unimplemented!("being filled in")
    }
    /// The same of all nodes.
    pub fn open_faults_all(&self) -> Result<Vec<StoredFault>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Nodes with an open fault that may have effects, sorted.
    pub fn nodes_with_open_faults(&self) -> Result<Vec<NodeName>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Open faults of a node that are only observed (weaker strategies).
    pub fn observed(&self, node: &NodeName) -> Result<Vec<StoredFault>, ReadError> {
        unimplemented!("being filled in")
    }
    /// One fault, open or closed.
    pub fn fault(&self, id: &FaultId) -> Result<Option<StoredFault>, ReadError> {
        unimplemented!("being filled in")
    }
    /// What a node's agent asserts, as far as it told.
    pub fn asserted_set(&self, node: &NodeName) -> Result<Vec<AssertedFault>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Last event stored in turn of the spool that this node's agent used last.
    pub fn last_order(&self, node: &NodeName) -> Result<Option<LastOrder>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Last number stored in turn of one spool.
    pub fn last_stored_number(
        &self,
        node: &NodeName,
        spool: &str,
    ) -> Result<Option<u64>, ReadError> {
        unimplemented!("being filled in")
    }
    /// The open incident of a node object.
    pub fn open_incident_of_uid(&self, node_uid: &str) -> Result<Option<Incident>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Open incidents under a node name: more than one only while another machine takes it over.
    pub fn open_incidents_of(&self, node: &NodeName) -> Result<Vec<Incident>, ReadError> {
        unimplemented!("being filled in")
    }
    /// All open incidents, oldest first.
    pub fn open_incidents(&self) -> Result<Vec<Incident>, ReadError> {
        unimplemented!("being filled in")
    }
    /// One incident.
    pub fn incident(&self, id: &IncidentId) -> Result<Option<Incident>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Incidents, newest first.
    pub fn incidents(
        &self,
        filter: &IncidentFilter,
        limit: usize,
    ) -> Result<Vec<Incident>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Transitions after a position, oldest first.
    pub fn transitions(
        &self,
        of: TransitionsOf<'_>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredTransition>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Events after a position, oldest first, of one node or all.
    pub fn events(
        &self,
        node: Option<&NodeName>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<StoredEvent>, ReadError> {
        unimplemented!("being filled in")
    }
    /// What is known of a machine.
    pub fn machine(&self, id: &str) -> Result<Option<Machine>, ReadError> {
        unimplemented!("being filled in")
    }
    /// A module's state.
    pub fn state_get(&self, key: &str) -> Result<Option<Vec<u8>>, ReadError> {
        unimplemented!("being filled in")
    }
    /// The number of the leadership that holds; 0 if none was set.
    pub fn fencing(&self) -> Result<u64, ReadError> {
        unimplemented!("being filled in")
    }
    /// A consumer; `None` if it never moved.
    pub fn consumer_position(&self, name: &str) -> Result<Option<Consumer>, ReadError> {
        unimplemented!("being filled in")
    }
    /// Sizes and counts.
    pub fn stats(&self) -> Result<Stats, ReadError> {
        unimplemented!("being filled in")
    }
}
