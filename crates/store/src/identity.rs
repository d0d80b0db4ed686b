//! The identity of a store, by which a different store in its place is noticed.

/// The identity of a store: random, created with the store, and the same in its copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub(crate) id: [u8; 16],
    /// Some writes may be lost, because files of the store were deleted or replaced while it was in use.
    pub(crate) doubtful: bool,
}

impl Identity {
    /// Whether both are the same store, or copies of it.
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
