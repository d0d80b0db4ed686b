//! Values of statements with their PostgreSQL types. Statements are sent typed and unnamed, in one round trip, because a pooler
//! may run each transaction on another connection.

use std::borrow::Cow;

use tokio_postgres::types::{ToSql, Type};

/// A type that has a PostgreSQL type of its own.
pub(super) trait Kind {
    fn kind() -> Type;
}

/// A value for a statement.
pub(super) trait Param: ToSql + Sync {
    fn type_of(&self) -> Type;
}

impl<T: ToSql + Sync + Kind> Param for T {
    fn type_of(&self) -> Type {
        T::kind()
    }
}

/// Text from elsewhere. PostgreSQL stores every character but NUL, which becomes U+FFFD.
pub(super) fn text(text: &str) -> Cow<'_, str> {
    if text.contains('\0') { text.replace('\0', "\u{fffd}").into() } else { text.into() }
}

/// Like [`text`], for text that may be missing.
pub(super) fn opt_text(maybe: Option<&str>) -> Option<Cow<'_, str>> {
    maybe.map(text)
}

macro_rules! kinds {
    ($($rust:ty => $one:ident, $many:ident;)*) => {
        $(
            impl Kind for $rust {
                fn kind() -> Type {
                    Type::$one
                }
            }

            impl Kind for Vec<$rust> {
                fn kind() -> Type {
                    Type::$many
                }
            }

            impl Kind for Vec<Option<$rust>> {
                fn kind() -> Type {
                    Type::$many
                }
            }

            impl Kind for &[$rust] {
                fn kind() -> Type {
                    Type::$many
                }
            }

            impl Kind for &[Option<$rust>] {
                fn kind() -> Type {
                    Type::$many
                }
            }
        )*
    };
}

kinds! {
    bool => BOOL, BOOL_ARRAY;
    i64 => INT8, INT8_ARRAY;
    f64 => FLOAT8, FLOAT8_ARRAY;
    String => TEXT, TEXT_ARRAY;
    &str => TEXT, TEXT_ARRAY;
    Cow<'_, str> => TEXT, TEXT_ARRAY;
    Vec<u8> => BYTEA, BYTEA_ARRAY;
    &[u8] => BYTEA, BYTEA_ARRAY;
}

impl<T: Kind> Kind for Option<T> {
    fn kind() -> Type {
        T::kind()
    }
}
