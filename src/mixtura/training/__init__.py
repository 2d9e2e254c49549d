"""Trainers: what to do with the occupancies. One file each."""
