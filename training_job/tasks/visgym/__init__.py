"""Environments of VisGym, where its fork of gymnasium is installed: the source article's task, ``maze_2d/easy``, first of all."""
