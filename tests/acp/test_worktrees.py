"""Paths in working trees of sessions."""

import pytest

from acp_gateway.acp.worktrees import FOLDER, origin_of, tree_of
from acp_gateway.made import git_worker


@pytest.mark.parametrize(
    ("path", "tree", "origin"),
    [
        ("/srv/proj/.worktrees/one", "/srv/proj/.worktrees/one", "/srv/proj"),
        ("/srv/proj/.worktrees/one/sub/x", "/srv/proj/.worktrees/one", "/srv/proj/sub/x"),
        ("/a/.worktrees/b/.worktrees/c", "/a/.worktrees/b/.worktrees/c", "/a/.worktrees/b"),
        ("/srv/proj/.worktrees/", None, None),
        ("/srv/proj/.worktrees", None, None),
        ("/srv/proj", None, None),
        ("", None, None),
        (None, None, None),
    ],
)
def test_a_path_tells_the_working_tree_and_where_it_would_be_without(
    path: str | None, tree: str | None, origin: str | None
) -> None:
    assert (tree_of(path), origin_of(path)) == (tree, origin)


def test_they_are_where_git_makes_them() -> None:
    assert FOLDER == git_worker.WORKTREES
