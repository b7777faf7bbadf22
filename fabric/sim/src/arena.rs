//! Tables of objects by number.

/// A table of objects by number. Numbers are never reused, so a late event for a removed object finds nothing. The
/// order of iteration is the order of creation.
pub(crate) struct Arena<T> {
    slots: Vec<Option<Box<T>>>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// Returns the number of the next object.
    pub(crate) fn next_id(&self) -> u32 {
        self.slots.len() as u32
    }

    pub(crate) fn insert(&mut self, object: T) -> u32 {
        let id = self.next_id();
        self.slots.push(Some(Box::new(object)));
        id
    }

    pub(crate) fn get(&self, id: u32) -> Option<&T> {
        self.slots.get(id as usize)?.as_deref()
    }

    pub(crate) fn get_mut(&mut self, id: u32) -> Option<&mut T> {
        self.slots.get_mut(id as usize)?.as_deref_mut()
    }

    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<T>> {
        self.slots.get_mut(id as usize)?.take()
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(Option::as_deref_mut)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(id, slot)| Some((id as u32, slot.as_deref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}
