"""Mazes with the semantics of VisGym's ``maze_2d/easy``, as one task among others."""
