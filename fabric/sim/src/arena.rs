//! Objects by number.

/// Objects by number. Numbers are never used twice, so a late event about an object that is gone finds nothing, and the
/// order of iteration is that of creation.
pub(crate) struct Arena<T> {
    slots: Vec<Option<Box<T>>>,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { slots: Vec::new() }
    }
}

impl<T> Arena<T> {
    /// The number the next object gets.
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

    /// Takes an object out: for good, or until [`Arena::put_back`], so that the rest of the world can be changed while
    /// the object works on it.
    pub(crate) fn remove(&mut self, id: u32) -> Option<Box<T>> {
        self.slots.get_mut(id as usize)?.take()
    }

    pub(crate) fn put_back(&mut self, id: u32, object: Box<T>) {
        self.slots[id as usize] = Some(object);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (u32, &T)> {
        self.slots.iter().enumerate().filter_map(|(id, slot)| Some((id as u32, slot.as_deref()?)))
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }
}
