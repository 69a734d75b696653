"""The Lua scripts; what they do is in `test_specification`."""

from acp_gateway.nodes.directory import scripts


def test_all_keys_of_the_scripts_have_the_hash_tag_of_the_prefix() -> None:
    assert scripts.PREFIX.startswith("{acp}")
    for name, script in vars(scripts).items():
        if name.isupper() and not name.startswith("_") and name not in ("PREFIX", "CHANNEL"):
            assert f"prefix = '{scripts.PREFIX}'" in script


def test_no_script_searches_all_keys() -> None:
    for script in vars(scripts).values():
        assert "SCAN" not in str(script)
        assert "'KEYS'" not in str(script)
