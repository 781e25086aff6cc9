"""In: an SSA graph of any ops. Out: an SSA graph of primitive ops on one device."""
