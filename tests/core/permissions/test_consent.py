"""The question before a prompt is sent beyond a limit: who is asked, and what becomes of the prompts."""

from types import MappingProxyType
from typing import Any

import pytest

from acp_gateway.core.permissions.consent import MORE, REFUSE, SEND
from acp_gateway.core.requests import Exceeded
from acp_gateway.core.sessions.session import Role
from acp_gateway.core.turns.queue import QueueChange
from acp_gateway.core.turns.steering import NO_TURN
from acp_gateway.protocol.methods import REQUEST_PERMISSION
from tests.core.test_same_version import NewScene
from tests.core.turns.test_steering import STEERS, TAKES_FURTHER_PROMPTS
from tests.kit.scene import Peer, Scene, make_policy, opened_scene

REACHED = Exceeded("cost_per_identity", "5 USD", "5.10 USD")


class Limits:
    """Limits that are reached, until more is allowed."""

    def __init__(self) -> None:
        self.reached: Exceeded | None = REACHED
        self.accounts: list[str] = []

    def exceeded(self, account: str) -> Exceeded | None:
        return self.reached

    def allow_more(self, account: str, exceeded: Exceeded) -> None:
        assert exceeded is REACHED
        self.accounts.append(account)
        self.reached = None


class Held:
    """A session of `ann` whose first prompt waits for an answer."""

    def __init__(self, *, welcome: Any = MappingProxyType({}), **options: Any) -> None:
        self.limits = Limits()
        self.scene, self.ann = opened_scene(make_policy(spending=self.limits, **options), **welcome)
        self.number = self.ann.prompt("first")
        self.question = self.ann.hears()

    @property
    def agent(self) -> list[Any]:
        return self.scene.agent.heard()

    def response(self, peer: Peer | None = None) -> Any:
        """The response to the prompt, behind what else has come."""
        return next(it for it in (peer or self.ann).heard() if it.get("id") == self.number and "method" not in it)


@pytest.fixture
def held() -> Held:
    return Held()


def test_the_sender_is_asked_before_the_agent_gets_the_prompt(held: Held) -> None:
    assert held.question["method"] == REQUEST_PERMISSION
    params = held.question["params"]
    title = "Send the prompt? cost_per_identity (5 USD a day) is reached: 5.10 USD today"
    assert (params["sessionId"], params["toolCall"]["title"]) == ("s", title)
    assert [option["optionId"] for option in params["options"]] == [SEND, MORE, REFUSE]
    assert held.agent == []
    held.ann.choose(held.question, SEND)
    prompt = held.scene.agent.takes("session/prompt")
    held.scene.agent.answer(prompt, stopReason="end_turn")
    assert held.response()["result"] == {"stopReason": "end_turn"}
    assert held.limits.accounts == []
    (event,) = [event for event in held.scene.audit_events if event.name == "permission_decided"]
    assert (event.details["decision"], event.details["optionKind"]) == (SEND, "allow_once")


def test_the_next_prompt_is_asked_about_again_unless_more_was_allowed(held: Held) -> None:
    held.ann.choose(held.question, SEND)
    held.scene.agent.answer(held.scene.agent.takes("session/prompt"), stopReason="end_turn")
    held.ann.heard()
    held.ann.prompt("second")
    held.ann.choose(held.ann.hears(), MORE)
    assert held.limits.accounts == ["me"]
    held.scene.agent.answer(held.scene.agent.takes("session/prompt"), stopReason="end_turn")
    held.ann.heard()
    held.ann.prompt("third")
    held.scene.agent.takes("session/prompt")


def test_a_prompt_that_is_refused_gets_an_error_with_the_limit(held: Held) -> None:
    held.ann.choose(held.question, REFUSE)
    error = held.response()["error"]
    assert "cost_per_identity (5 USD a day) is reached: 5.10 USD today" in error["message"]
    assert error["data"] == {"reason": "spending_limit", "notSent": True}
    assert held.agent == []


def test_a_client_that_can_not_ask_gets_an_error_that_says_what_can(held: Held) -> None:
    held.ann.prompt("second")
    held.ann.heard()
    held.ann.fail(held.question)
    heard = held.ann.heard()
    error = next(it["error"] for it in heard if it.get("id") == held.number)
    assert "can't ask" in error["message"]
    assert "`acp-gateway chat`" in error["message"]
    assert heard[-1]["method"] == REQUEST_PERMISSION


def test_a_question_that_is_dismissed_cancels_its_prompt_and_the_next_is_asked_about(held: Held) -> None:
    held.ann.prompt("second")
    held.ann.heard()
    held.ann.send(id=held.question["id"], result={"outcome": {"outcome": "cancelled"}})
    heard = held.ann.heard()
    assert [it["result"]["stopReason"] for it in heard if it.get("id") == held.number] == ["cancelled"]
    assert heard[-1]["method"] == REQUEST_PERMISSION


def test_a_prompt_without_an_answer_in_time_is_refused() -> None:
    held = Held(permission_timeout=60.0)
    held.scene.pass_time(61.0)
    assert held.response()["error"]["data"]["reason"] == "spending_limit"


def test_other_controllers_may_answer_and_those_that_join_later_but_no_guest_and_no_observer(held: Held) -> None:
    others = [held.scene.join("guest", "other", only="s", guest=True), held.scene.join("watcher", role=Role.OBSERVER)]
    phone = held.scene.join("phone")
    asked = [message for message in phone.load() if message.get("method") == REQUEST_PERMISSION]
    assert not [it for peer in others for it in peer.load() if it.get("method") == REQUEST_PERMISSION]
    phone.choose(asked[0], SEND)
    held.scene.agent.takes("session/prompt")
    assert "$/cancel_request" in [message.get("method") for message in held.ann.heard()]


def test_a_guest_is_told_the_limit_and_who_may_go_on() -> None:
    held = Held()
    held.ann.choose(held.question, REFUSE)
    guest = held.scene.join_session("guest", "other", only="s", guest=True)
    held.number = guest.prompt("of a guest")
    error = held.response(guest)["error"]
    assert "cost_per_identity" in error["message"]
    assert "`acp-gateway chat`" in error["message"]
    assert held.agent == []


def test_later_prompts_wait_behind_it_and_go_on_after_each_end(held: Held) -> None:
    guest = held.scene.join_session("guest", "other", only="s", guest=True)
    held.number = guest.prompt("of a guest")
    second = held.ann.prompt("second")
    assert [request.queued.text for request in held.scene.session().queue if request.queued] == ["of a guest", "second"]
    held.ann.choose(held.question, REFUSE)
    assert "cost_per_identity" in held.response(guest)["error"]["message"]
    question = held.ann.heard()[-1]
    assert question["method"] == REQUEST_PERMISSION
    held.ann.choose(question, SEND)
    prompt = held.scene.agent.takes("session/prompt")
    assert prompt["params"]["prompt"][0]["text"] == "second"
    held.scene.agent.answer(prompt, stopReason="end_turn")
    assert second in [message.get("id") for message in held.ann.heard()]


def test_prompts_that_wait_for_a_turn_are_asked_about_at_its_end() -> None:
    held = Held()
    held.ann.choose(held.question, SEND)
    running = held.scene.agent.takes("session/prompt")
    held.ann.prompt("second")
    assert not [it for it in held.ann.heard() if it.get("method") == REQUEST_PERMISSION]
    held.scene.agent.answer(running, stopReason="end_turn")
    question = held.ann.heard()[-1]
    assert (question["method"], held.agent) == (REQUEST_PERMISSION, [])
    held.ann.choose(question, MORE)
    held.scene.agent.takes("session/prompt")


def test_a_stop_takes_the_prompt_and_the_question_back(held: Held) -> None:
    held.ann.cancel()
    heard = held.ann.heard()
    assert [it["result"]["stopReason"] for it in heard if it.get("id") == held.number] == ["cancelled"]
    assert "$/cancel_request" in [message.get("method") for message in heard]
    assert [message["method"] for message in held.agent] in ([], ["session/cancel"])
    assert held.scene.multiplexer.waiting(held.scene.session()) == []


def test_a_cancelled_prompt_takes_its_question_back_and_the_next_one_is_asked_about(held: Held) -> None:
    held.ann.prompt("second")
    held.ann.heard()
    held.ann.send(method="$/cancel_request", params={"requestId": held.number})
    heard = held.ann.heard()
    assert [message.get("method") for message in heard if "method" in message] == [
        "$/cancel_request",
        REQUEST_PERMISSION,
    ]
    held.ann.choose(heard[-1], SEND)
    assert held.scene.agent.takes("session/prompt")["params"]["prompt"][0]["text"] == "second"


def test_a_prompt_that_is_sent_now_is_asked_about_in_place_of_the_one_that_waits(held: Held) -> None:
    held.ann.prompt("second")
    held.ann.heard()
    session = held.scene.session()
    (queued,) = (request.queued for request in session.queue)
    assert queued is not None
    assert held.scene.multiplexer.change_queue(held.ann.client, session, QueueChange(queued.key, "send_now")) is None
    held.scene.deliver()
    heard = held.ann.heard()
    assert [it["result"]["stopReason"] for it in heard if it.get("id") == held.number] == ["cancelled"]
    held.agent.clear()
    held.ann.choose(heard[-1], SEND)
    assert held.scene.agent.takes("session/prompt")["params"]["prompt"][0]["text"] == "second"


@pytest.mark.parametrize("steers", [STEERS, {"agentCapabilities": TAKES_FURTHER_PROMPTS}])
def test_no_prompt_gets_past_the_question_as_one_for_the_turn_that_runs(steers: Any) -> None:
    held = Held(welcome=steers)
    held.ann.prompt("second")
    session = held.scene.session()
    (queued,) = (request.queued for request in session.queue)
    assert queued is not None
    assert held.scene.multiplexer.change_queue(held.ann.client, session, QueueChange(queued.key, "steer")) == NO_TURN
    assert (len(session.queue), held.agent) == (1, [])
    held.ann.choose(held.question, SEND)
    assert held.scene.agent.takes("session/prompt")["params"]["prompt"][0]["text"] == "first"


def test_a_prompt_that_waits_without_its_client_counts_as_left_behind(held: Held) -> None:
    (request,) = held.ann.client.requests.values()
    held.ann.gone()
    memory = held.scene.multiplexer.memory
    assert memory.abandoned_prompt_sizes() == {"me": len(request.message.text)}
    memory.drop_abandoned_prompts("me")
    assert memory.abandoned_prompt_sizes().total() == 0


def test_the_prompt_of_a_client_that_has_gone_waits_for_the_next_one(held: Held) -> None:
    held.ann.gone()
    assert [event.name for event in held.scene.events] == ["permission_waiting"]
    phone = held.scene.join("phone")
    (question,) = [message for message in phone.load() if message.get("method") == REQUEST_PERMISSION]
    phone.choose(question, SEND)
    held.scene.agent.takes("session/prompt")


def test_the_end_of_the_agent_ends_the_question_too(held: Held) -> None:
    held.scene.lose_agent()
    assert "error" in held.response()
    assert not held.scene.multiplexer.busy


def test_a_client_of_version_2_is_asked_in_its_version() -> None:
    limits = Limits()
    scene = NewScene(make_policy(spending=limits))
    ann = scene.come("ann")
    ann.new_session()
    ann.prompt()
    (question,) = [message for message in ann.heard() if message.get("method") == REQUEST_PERMISSION]
    assert question["params"]["title"].startswith("Send the prompt? cost_per_identity")
    ann.choose(question, SEND)
    scene.agent.takes("session/prompt")


def test_no_rule_answers_and_none_is_offered() -> None:
    from acp_gateway.rules.rule import Rule

    limits = Limits()
    rules = [Rule(id="rules[0]", decision="deny")]
    scene = Scene(make_policy(spending=limits, rules=rules))
    ann = scene.join("ann", clientCapabilities={"_meta": {"acp-gateway": {"rules": True}}})
    ann.new_session()
    ann.prompt()
    assert "_meta" not in ann.hears()["params"]
