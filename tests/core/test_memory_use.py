"""Memory of one agent process beside journals and outboxes: how it is counted and given up."""

from typing import Any

from tests.core.test_translated_clients import join_new
from tests.kit.scene import Peer, Scene, encode, opened_scene


def together() -> tuple[Scene, Peer, Peer]:
    """Two controllers of the session `s`."""
    scene, ann = opened_scene()
    bob = scene.join_session("bob")
    bob.heard()
    return scene, ann, bob


def test_prompts_of_a_guest_that_has_left_are_dropped_and_those_of_an_owner_wait_on() -> None:
    scene, ann, bob = together()
    guest = scene.join_session("guest", "me", only="s", guest=True)
    ann.prompt("first")
    for peer in (guest, bob, guest):
        peer.prompt(f"of {peer.client.name}")
    guest.gone()
    bob.gone()
    ann.prompt("mine")
    of_bob, mine = scene.session().queue
    assert (of_bob.client, mine.client) == (bob.client, ann.client)
    assert scene.multiplexer.memory.abandoned_prompt_sizes() == {"me": len(of_bob.message.text)}
    scene.multiplexer.memory.drop_abandoned_prompts("you")
    assert len(scene.session().queue) == 2
    scene.multiplexer.memory.drop_abandoned_prompts("me")
    assert scene.session().queue == (mine,)
    assert scene.multiplexer.memory.abandoned_prompt_sizes().total() == 0


def test_prompts_of_those_who_are_there_are_not_left_behind() -> None:
    scene, ann, bob = together()
    for peer in (ann, bob, bob):
        peer.prompt()
    bob.away()
    assert scene.multiplexer.memory.abandoned_prompt_sizes().total() == 0
    scene.multiplexer.memory.drop_abandoned_prompts("me")
    assert len(scene.session().queue) == 2


def test_an_unfinished_echo_counts_as_memory_until_it_is_complete() -> None:
    scene, ann, bob = together()
    memory = scene.multiplexer.memory
    blocks: list[dict[str, Any]] = [{"type": "text", "text": "fix it " * 1000}, {"type": "image", "data": "A" * 2000}]
    ann.request("session/prompt", sessionId="s", prompt=blocks)
    bob.heard()
    assert memory.echo_bytes == 0
    update = {"sessionUpdate": "user_message_chunk", "content": {"type": "text", "text": "fix"}}
    chunk = encode(method="session/update", params={"sessionId": "s", "update": update})
    scene.agent.say(chunk)
    # The text in UTF-16 without its spaces, the image, and the chunk.
    assert memory.echo_bytes > 2 * 5 * 1000 + 2000 + len(chunk)
    assert bob.heard_text() == []
    memory.end_echoes()
    scene.deliver()
    assert memory.echo_bytes == 0
    assert bob.heard_text() == [chunk]


def test_requests_early_updates_and_results_of_an_agent_count_while_they_are_kept() -> None:
    scene, ann, bob = together()
    memory = scene.multiplexer.memory
    ann.heard()
    before = memory.agent_bytes
    scene.agent.ask_permission("q")
    assert memory.agent_bytes > before + 100
    ann.choose(ann.hears(), "yes")
    assert memory.agent_bytes == before
    scene.agent.heard()
    bob.request("session/new", cwd="/srv", mcpServers=[])
    scene.agent.state("plan", "t", entries=["x" * 1000])
    assert memory.agent_bytes > before + 1000
    scene.agent.answers("session/new", sessionId="t", modes={"x": "y" * 500})
    assert before + 500 < memory.agent_bytes < before + 1000


def test_the_options_that_translators_remember_count_and_stay_when_memory_is_short() -> None:
    scene, _, _ = together()
    memory = scene.multiplexer.memory
    assert memory.translation_bytes == 0
    join_new(scene).resume(replay=False)
    option = {"id": "x", "name": "X" * 1000, "type": "select", "currentValue": "v", "options": []}
    scene.agent.state("config_option_update", configOptions=[option])
    remembered = memory.translation_bytes
    assert remembered > 1000
    memory.forget_translations()
    assert memory.translation_bytes == remembered
