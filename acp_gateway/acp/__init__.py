"""The objects of ACP, read from JSON texts of any quality.

`reading` has the one step that reads an object, `updates` what a session's updates say, `worktrees` how
sessions get git worktrees.
"""
