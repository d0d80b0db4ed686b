//! Which store it is, so that another one in its place is noticed.

/// Which store it is: made at random with it, and found again in its copies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub(crate) id: [u8; 16],
    /// Some of what was written may be lost, since its files were deleted or replaced while they were in use.
    pub(crate) doubtful: bool,
}

impl Identity {
    /// Whether two stores are one, or copies of one.
    pub fn is_same(&self, other: &Self) -> bool {
        self.id == other.id
    }
}
