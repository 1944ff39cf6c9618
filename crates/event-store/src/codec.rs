//! A small binary form for rows of the hot path: numbers as LEB128, texts with their length, an
//! option as a byte before its value. The first byte of a row is its version.

use health_event::{BootId, Device, Entity, Order, Sender, Stamp};
use jiff::Timestamp;
use rusqlite::types::Type;

/// Why stored bytes could not be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("stored {what} is damaged at byte {at}")]
pub(crate) struct Damaged {
    what: &'static str,
    at: usize,
}

impl From<Damaged> for rusqlite::Error {
    fn from(damaged: Damaged) -> Self {
        Self::FromSqlConversionFailure(0, Type::Blob, Box::new(damaged))
    }
}

pub(crate) type Decoded<T> = Result<T, Damaged>;

/// Nanoseconds of a time for a column; times outside of 1677…2262 are cut.
pub(crate) fn nanos(at: Timestamp) -> i64 {
    let cut = at
        .as_nanosecond()
        .clamp(i128::from(i64::MIN), i128::from(i64::MAX));
    i64::try_from(cut).unwrap_or(0)
}

/// The time of a column.
pub(crate) fn from_nanos(nanos: i64) -> Timestamp {
    Timestamp::from_nanosecond(i128::from(nanos)).unwrap_or(Timestamp::UNIX_EPOCH)
}

#[derive(Default)]
pub(crate) struct Encoder {
    bytes: Vec<u8>,
}

impl Encoder {
    pub(crate) fn new(version: u8) -> Self {
        let mut bytes = Vec::with_capacity(256);
        bytes.push(version);
        Self { bytes }
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    pub(crate) fn flag(&mut self, value: bool) {
        self.bytes.push(u8::from(value));
    }

    pub(crate) fn number(&mut self, mut value: u64) {
        while value >= 0x80 {
            self.bytes
                .push(u8::try_from(value & 0x7f).unwrap_or(0) | 0x80);
            value >>= 7;
        }
        self.bytes.push(u8::try_from(value).unwrap_or(0));
    }

    pub(crate) fn signed(&mut self, value: i64) {
        self.number((value << 1 ^ value >> 63).cast_unsigned());
    }

    pub(crate) fn blob(&mut self, value: &[u8]) {
        self.number(value.len() as u64);
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn text(&mut self, value: &str) {
        self.blob(value.as_bytes());
    }

    pub(crate) fn option<T>(&mut self, value: Option<&T>, put: impl FnOnce(&mut Self, &T)) {
        self.flag(value.is_some());
        if let Some(value) = value {
            put(self, value);
        }
    }

    pub(crate) fn list<'a, T: 'a>(
        &mut self,
        values: impl ExactSizeIterator<Item = &'a T>,
        mut put: impl FnMut(&mut Self, &T),
    ) {
        self.number(values.len() as u64);
        values.for_each(|value| put(self, value));
    }

    pub(crate) fn time(&mut self, at: &Timestamp) {
        self.signed(at.as_second());
        self.signed(i64::from(at.subsec_nanosecond()));
    }

    pub(crate) fn order(&mut self, order: &Order) {
        self.text(order.boot.as_str());
        self.text(&order.spool);
        self.number(order.number);
    }

    pub(crate) fn stamp(&mut self, stamp: &Stamp) {
        self.option(stamp.order.as_ref(), Self::order);
        self.time(&stamp.at);
    }

    pub(crate) fn device(&mut self, device: &Device) {
        self.list(device.entities().iter(), Self::entity);
    }

    pub(crate) fn entity(&mut self, entity: &Entity) {
        self.text(&entity.kind);
        self.text(&entity.value);
    }
}

pub(crate) struct Decoder<'a> {
    what: &'static str,
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Decoder<'a> {
    /// Starts after the version byte, which must be the expected one.
    pub(crate) fn new(what: &'static str, bytes: &'a [u8], version: u8) -> Decoded<Self> {
        let decoder = Self { what, bytes, at: 1 };
        if bytes.first() == Some(&version) {
            Ok(decoder)
        } else {
            Err(Damaged { what, at: 0 })
        }
    }

    pub(crate) fn damaged(&self) -> Damaged {
        Damaged {
            what: self.what,
            at: self.at,
        }
    }

    pub(crate) fn raw(&mut self, length: usize) -> Decoded<&'a [u8]> {
        let end = self.at.checked_add(length);
        let part = end.and_then(|end| self.bytes.get(self.at..end));
        let part = part.ok_or_else(|| self.damaged())?;
        self.at += length;
        Ok(part)
    }

    pub(crate) fn flag(&mut self) -> Decoded<bool> {
        Ok(self.raw(1)?[0] != 0)
    }

    pub(crate) fn number(&mut self) -> Decoded<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.raw(1)?[0];
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(self.damaged())
    }

    pub(crate) fn signed(&mut self) -> Decoded<i64> {
        let value = self.number()?;
        Ok((value >> 1).cast_signed() ^ -(value & 1).cast_signed())
    }

    pub(crate) fn blob(&mut self) -> Decoded<&'a [u8]> {
        let length = usize::try_from(self.number()?).map_err(|_| self.damaged())?;
        self.raw(length)
    }

    pub(crate) fn text(&mut self) -> Decoded<&'a str> {
        let bytes = self.blob()?;
        std::str::from_utf8(bytes).map_err(|_| self.damaged())
    }

    pub(crate) fn string(&mut self) -> Decoded<String> {
        self.text().map(str::to_owned)
    }

    pub(crate) fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Decoded<T>,
    ) -> Decoded<Option<T>> {
        if self.flag()? {
            take(self).map(Some)
        } else {
            Ok(None)
        }
    }

    pub(crate) fn list<T>(
        &mut self,
        mut take: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let length = self.number()?;
        // No reservation by a number that may be damaged: each item takes at least one byte.
        let mut items = Vec::new();
        for _ in 0..length {
            items.push(take(self)?);
        }
        Ok(items)
    }

    pub(crate) fn time(&mut self) -> Decoded<Timestamp> {
        let (second, nanosecond) = (self.signed()?, self.signed()?);
        let nanosecond = i32::try_from(nanosecond).map_err(|_| self.damaged())?;
        Timestamp::new(second, nanosecond).map_err(|_| self.damaged())
    }

    pub(crate) fn order(&mut self) -> Decoded<Order> {
        Ok(Order {
            boot: BootId::new(self.text()?),
            spool: self.text()?.into(),
            number: self.number()?,
        })
    }

    pub(crate) fn stamp(&mut self) -> Decoded<Stamp> {
        Ok(Stamp {
            order: self.option(Self::order)?,
            at: self.time()?,
        })
    }

    pub(crate) fn sender(&mut self) -> Decoded<Sender> {
        self.text().map(Sender::from_stored)
    }

    pub(crate) fn entity(&mut self) -> Decoded<Entity> {
        Ok(Entity {
            kind: self.string()?,
            value: self.string()?,
        })
    }

    pub(crate) fn device(&mut self) -> Decoded<Device> {
        self.list(Self::entity).map(Device::new)
    }
}
