"""A small real trainer for the CPU: GRPO over policies that choose among a closed list of replies."""
