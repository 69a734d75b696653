"""Decisions on notifications, without a clock and a network."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo
from math import inf
from typing import Any

import pytest

from acp_gateway.gateway.push import deciding
from acp_gateway.gateway.push.deciding import (
    MAX_OPTIONS,
    MAX_SHOWN,
    MAX_WAITING,
    PATIENCE,
    PAUSES,
    PAYLOAD_SIZE,
    SERVICES,
    Done,
    Mailbox,
    Question,
    Quiet,
    TurnNotice,
    Verdict,
    is_public,
    judge,
    question_content,
    read_endpoint,
    tag_of,
    turn_content,
)

NOON = 1_900_000_000 // 86400 * 86400 + 12 * 3600.0
YES, NO = ("yes", "Allow once", "allow_once"), ("no", "Reject", "reject_once")


def question(**members: Any) -> Question:
    return replace(
        Question("s1", "x-1", "opencode", "Fix the parser", "Run make test", (YES, NO), NOON, attended=False), **members
    )


def contents(box: Mailbox) -> list[dict[str, Any]]:
    """The messages that are to be sent, taken as sent."""
    found = [json.loads(message.content) for message in box.waiting]
    for message in [*box.waiting]:
        box.attempt(message)
        box.sent(message)
    return found


@pytest.fixture
def box() -> Mailbox:
    return Mailbox()


def test_a_question_without_a_controller_is_told_at_once_and_once(box: Mailbox) -> None:
    assert box.look([question()], NOON) == inf
    assert box.look([question()], NOON + 1) == inf
    assert contents(box) == [
        {
            "tag": "s1 x-1",
            "sessionId": "s1",
            "requestId": "x-1",
            "title": "Fix the parser needs you",
            "body": "Run make test",
            "options": [
                {"optionId": "yes", "name": "Allow once", "kind": "allow_once"},
                {"optionId": "no", "name": "Reject", "kind": "reject_once"},
            ],
        }
    ]


def test_a_connected_controller_has_time_to_decide_before_a_notification() -> None:
    box, asked = Mailbox(), question(attended=True)
    assert box.look([asked], NOON) == NOON + PATIENCE
    assert contents(box) == []
    box.look([], NOON + PATIENCE - 1)
    assert contents(box) == [], "it was decided in time"
    box.look([asked], NOON + PATIENCE)
    assert len(contents(box)) == 1


def test_a_question_is_told_when_its_last_controller_leaves(box: Mailbox) -> None:
    box.look([question(attended=True)], NOON)
    box.look([question()], NOON + 1)
    assert len(contents(box)) == 1


def test_a_decision_elsewhere_takes_the_notification_away(box: Mailbox) -> None:
    box.look([question()], NOON)
    contents(box)
    box.look([], NOON + 5)
    assert contents(box) == [{"tag": "s1 x-1", "decided": True, "replace": False}]


def test_a_decision_before_the_first_attempt_leaves_nothing_to_send(box: Mailbox) -> None:
    box.look([question()], NOON)
    box.look([], NOON)
    assert box.waiting == []


def test_a_decision_after_a_failed_attempt_is_sent_in_place_of_the_question(box: Mailbox) -> None:
    box.look([question()], NOON)
    box.attempt(box.waiting[0])
    box.look([], NOON)
    assert [json.loads(message.content).get("decided") for message in box.waiting] == [True]


def test_a_question_and_its_decision_have_one_topic_and_others_another(box: Mailbox) -> None:
    box.look([question(), question(request="x-2")], NOON)
    topics = [message.topic for message in box.waiting]
    contents(box)
    box.look([], NOON)
    assert [message.topic for message in box.waiting] == topics
    assert len({*topics}) == 2
    assert {len(topic) for topic in topics} == {32}


def test_quiet_hours_put_a_notification_off_until_their_end() -> None:
    # 22:00 to 07:00 where it is two hours later than in UTC; noon is 14:00 there.
    quiet = Quiet(start=22 * 60, end=7 * 60, offset=120)
    night, morning = NOON + 9 * 3600, NOON + 17 * 3600
    box = Mailbox(quiet)
    assert box.look([question(arrived=night)], night) == morning
    assert contents(box) == []
    assert box.look([question(arrived=night)], morning) == inf
    assert len(contents(box)) == 1


@pytest.mark.parametrize(
    ("start", "end", "hour", "over"),
    [(22, 7, 21, 21), (22, 7, 22, 31), (22, 7, 6, 7), (22, 7, 7, 7), (9, 17, 12, 17), (9, 17, 17, 17), (8, 8, 8, 8)],
)
def test_quiet_hours_may_include_midnight(start: int, end: int, hour: int, over: int) -> None:
    midnight = NOON - 12 * 3600
    assert Quiet(start * 60, end * 60, 0).over_at(midnight + hour * 3600) == midnight + over * 3600


class Berlin(tzinfo):
    """A zone whose clocks go from 2:00 to 3:00 on a day in spring, and back on one in autumn, as in 2030."""

    SPRING, AUTUMN = (datetime.fromisoformat(f"2030-{day}T01:00") for day in ("03-31", "10-27"))

    def utcoffset(self, at: datetime | None) -> timedelta:
        assert at is not None
        plain = at.replace(tzinfo=None, fold=0)
        begins, ends = self.SPRING + timedelta(hours=2), self.AUTUMN + timedelta(hours=2 - at.fold)
        return timedelta(hours=2 if begins <= plain < ends else 1)

    def fromutc(self, at: datetime) -> datetime:
        plain = at.replace(tzinfo=None)
        ahead = 2 if self.SPRING <= plain < self.AUTUMN else 1
        repeated = self.AUTUMN <= plain < self.AUTUMN + timedelta(hours=1)
        return (at + timedelta(hours=ahead)).replace(fold=int(repeated))

    def tzname(self, at: datetime | None) -> str:
        return "Europe/Berlin"

    def dst(self, at: datetime | None) -> timedelta:
        return self.utcoffset(at) - timedelta(hours=1)


@pytest.mark.parametrize(
    ("now", "over"),
    [
        ("2030-03-30T22:00", "2030-03-31T05:00"),  # 23:00 in winter, 7:00 in summer: an hour less.
        ("2030-10-26T21:00", "2030-10-27T06:00"),  # 23:00 in summer, 7:00 in winter: an hour more.
        ("2030-07-01T04:59", "2030-07-01T05:00"),
        ("2030-07-01T05:00", "2030-07-01T05:00"),
        ("2030-12-01T05:30", "2030-12-01T06:00"),
    ],
)
def test_quiet_hours_of_a_zone_keep_to_its_clocks(now: str, over: str) -> None:
    quiet = Quiet(22 * 60, 7 * 60, offset=-600, zone="Europe/Berlin")
    begin, end = (datetime.fromisoformat(time).replace(tzinfo=UTC).timestamp() for time in (now, over))
    assert quiet.over_at(begin, Berlin()) == end


def test_quiet_hours_that_end_in_the_hour_that_comes_twice_are_in_both() -> None:
    quiet = Quiet(22 * 60, 2 * 60 + 30, zone="Europe/Berlin")
    first = datetime(2030, 10, 27, 0, 15, tzinfo=UTC).timestamp()
    for begin in (first, first + 3600):
        assert quiet.over_at(begin, Berlin()) == begin + 15 * 60
    assert quiet.over_at(first + 30 * 60, Berlin()) == first + 30 * 60


def test_a_decision_is_told_in_quiet_hours_too(box: Mailbox) -> None:
    box.look([question()], NOON)
    contents(box)
    box.quiet = Quiet(0, 1439, 0)
    box.look([], NOON)
    assert len(contents(box)) == 1


def test_a_notification_of_a_former_process_is_taken_away_once_its_question_is_not_open() -> None:
    box = Mailbox(shown={"s1 x-0": None, "s1 x-1": None})
    box.look([question()], NOON)
    assert [(one["tag"], "decided" in one) for one in contents(box)] == [("s1 x-1", False), ("s1 x-0", True)]
    assert [*box.shown] == ["s1 x-1"]


def test_a_question_of_a_former_process_that_is_decided_before_it_is_told_again_is_taken_away() -> None:
    box = Mailbox(shown={"s1 x-1": None})
    box.look([question()], NOON)
    box.look([], NOON)
    box.look([], NOON)
    assert contents(box) == [{"tag": "s1 x-1", "decided": True, "replace": False}]
    box.look([], NOON)
    assert contents(box) == []


def test_what_a_browser_may_show_changes_with_the_first_attempt_and_with_the_decision(box: Mailbox) -> None:
    box.look([question()], NOON)
    (asked,) = box.waiting
    assert [box.attempt(asked), box.attempt(asked), box.sent(asked)] == [True, False, False]
    assert [*box.shown] == ["s1 x-1"]
    box.look([], NOON)
    (decided,) = box.waiting
    assert [box.attempt(decided), box.sent(decided), box.sent(decided)] == [False, True, False]
    assert not box.shown


def test_few_notifications_of_a_browser_are_remembered(box: Mailbox) -> None:
    for number in range(MAX_SHOWN + 1):
        box.look([question(request=f"x-{one}") for one in range(number + 1)], NOON)
        contents(box)
    assert [*box.shown] == [f"s1 x-{number}" for number in range(1, MAX_SHOWN + 1)]


def test_few_messages_wait_for_a_push_service(box: Mailbox) -> None:
    box.look([question(request=f"x-{number}") for number in range(MAX_WAITING + 5)], NOON)
    assert (len(box.waiting), box.waiting[-1].tag) == (MAX_WAITING, f"s1 x-{MAX_WAITING + 4}")


def test_push_content_off_leaves_ids_and_a_title() -> None:
    content = json.loads(question_content(question(), full=False))
    assert content == {"tag": "s1 x-1", "sessionId": "s1", "requestId": "x-1", "title": "opencode needs you"}


def test_a_message_is_bounded_and_shows_no_secret_and_no_control_character() -> None:
    secret = "sk-ant-api03-" + "a1B2" * 20
    long = question(
        title="t\u202e" * 5000,
        asked=f"curl -H 'x-api-key: {secret}'\n\x1b[31m rest \ud800",
        options=tuple((f"option-{number}" * 20, "n\u4e2d" * 500, None) for number in range(50)),
    )
    text = question_content(long, full=True)
    assert len(text) <= PAYLOAD_SIZE
    content = json.loads(text)
    assert secret not in text.decode()
    assert not {"\u202e", "\x1b", "\n"} & {*content["title"], *content["body"]}
    assert 0 < len(content["options"]) < 50


@pytest.mark.parametrize("asked", ["rm -rf build " * 50, f"ls{' ' * 2000}; rm -rf ~", f"ls{' ' * 9000}; rm -rf ~"])
def test_a_question_that_is_cut_has_no_buttons(asked: str) -> None:
    content = json.loads(question_content(question(asked=asked), full=True))
    assert content["options"] == [] or "rm -rf ~" in content["body"]
    assert content["body"].endswith("…") or "rm -rf ~" in content["body"]


def test_of_very_many_options_the_first_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[str] = []

    def beginning(text: str, limit: int) -> tuple[str, bool]:
        read.append(text)
        return text[:limit], False

    monkeypatch.setattr(deciding, "beginning_without_secrets", beginning)
    options = tuple((f"{number}", f"option {number}", None) for number in range(1000))
    content = json.loads(question_content(question(options=options), full=True))
    assert [option["optionId"] for option in content["options"]] == [f"{number}" for number in range(MAX_OPTIONS)]
    assert len(read) < 20


@pytest.mark.parametrize("asked", [None, "", " \n"])
def test_a_question_without_words_has_no_buttons(asked: str | None) -> None:
    assert json.loads(question_content(question(asked=asked), full=True))["options"] == []


def test_ids_that_are_too_long_for_a_message_are_left_out() -> None:
    content = json.loads(question_content(question(session="\u4e2d" * 1024), full=True))
    assert "sessionId" not in content
    assert len(content["tag"]) == 32
    # A button's answer needs them.
    assert content["options"] == []


@pytest.mark.parametrize(
    ("endpoint", "service"),
    [
        ("https://fcm.googleapis.com/fcm/send/a:b", SERVICES[0]),
        ("https://fcm.googleapis.com:443/fcm/send/a:b", SERVICES[0]),
        ("https://updates.push.services.mozilla.com/wpush/v2/g", SERVICES[1]),
        ("https://web.push.apple.com/Q", SERVICES[2]),
        ("https://db5p.notify.windows.com/w/?token=a%2b", SERVICES[3]),
        ("https://push.example/1", "push.example"),
    ],
)
def test_endpoints_of_known_services_and_of_push_hosts_are_accepted(endpoint: str, service: str) -> None:
    assert read_endpoint(endpoint, ["push.example"]).service == service


@pytest.mark.parametrize(
    "endpoint",
    [
        "",
        "http://fcm.googleapis.com/a",
        "https://fcm.googleapis.com",
        "https://fcm.googleapis.com:8443/a",
        "https://evilfcm.googleapis.com/a",
        "https://fcm.googleapis.com.evil.example/a",
        "https://fcm.googleapis.com@10.0.0.1/a",
        "https://10.0.0.1/a",
        "https://localhost/a",
        "https://evil-push.apple.com/a",
        "https://push.apple.com/a",
        "https://web.push.apple.com./a",
        "https://FCM.googleapis.com/a",
        "https://fcm.googleapis.com/a b",
        "https://fcm.googleapis.com/a\r\nHost: b",
        "https://fcm.googleapis.com/" + "a" * 1024,
        "https://push.example/1",
    ],
)
def test_other_endpoints_are_refused(endpoint: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        read_endpoint(endpoint)


@pytest.mark.parametrize(
    ("address", "public"),
    [
        ("142.250.1.1", True),
        ("2a00:1450:4001::1", True),
        ("127.0.0.1", False),
        ("10.1.2.3", False),
        ("192.168.0.1", False),
        ("169.254.169.254", False),
        ("100.64.0.1", False),
        ("0.1.2.3", False),
        ("224.0.0.1", False),
        ("::1", False),
        ("fe80::1%eth0", False),
        ("fd00::1", False),
        ("::ffff:10.0.0.1", False),
        ("::ffff:142.250.1.1", True),
        ("64:ff9b::a00:1", False),
        ("64:ff9b::8efa:101", True),
        ("2002:a00:1::1", False),
        ("64:ff9b:1::a00:1", False),
        ("::ffff:0:10.0.0.1", False),
        ("::10.0.0.1", False),
        ("fec0::1", False),
        ("2001:db8::1", False),
        ("2001::a00:1", False),
        ("3fff::1", False),
        ("3fff:1000::1", True),
        ("no address", False),
    ],
)
def test_only_addresses_of_the_internet_are_public(address: str, public: bool) -> None:
    assert is_public(address) is public


def test_answers_of_push_services_are_judged() -> None:
    assert judge(201, "", 1) == Verdict("sent")
    assert judge(404, "", 1) == judge(410, "", 1) == Verdict("ended")
    assert judge(400, "", 1) == judge(403, "", 1) == judge(301, "", 1) == Verdict("failed")
    assert judge(429, "7", 1) == judge(503, "7", 1) == Verdict("retry", 7)
    assert judge(429, "99999", 1) == Verdict("retry", 600)
    assert judge(None, "", 1) == judge(500, "tomorrow", 1) == Verdict("retry", PAUSES[0])
    assert judge(500, "", len(PAUSES)) == Verdict("retry", PAUSES[-1])
    assert judge(500, "1", len(PAUSES) + 1) == Verdict("failed")


# Of other machines


def test_notifications_of_a_machine_stay_until_it_has_told_its_questions_also_after_a_restart() -> None:
    there = question(session="gpu1/s1", machine="gpu1")
    box = Mailbox(shown=dict.fromkeys(["gpu1/s1 x-1", "gpu1/s1 x-2", "gpu10/s1 x-1", "s1 x-1"]))
    box.look([], NOON, ["gpu1"])
    assert [it["tag"] for it in contents(box)] == ["gpu10/s1 x-1", "s1 x-1"]
    box.look([there], NOON)
    assert [(it["tag"], it.get("decided")) for it in contents(box)] == [("gpu1/s1 x-2", True)]
    box.look([], NOON)
    assert [(it["tag"], it.get("decided")) for it in contents(box)] == [("gpu1/s1 x-1", True)]


def test_a_message_names_the_machine_that_is_asked_and_its_tag_begins_with_it() -> None:
    there = question(session="gpu1/s1", machine="gpu1")
    assert json.loads(question_content(there, full=True))["machine"] == "gpu1"
    assert json.loads(question_content(there, full=False))["machine"] == "gpu1"
    assert "machine" not in json.loads(question_content(question(), full=True))
    long = question(session="gpu1/" + 500 * "s", machine="gpu1")
    assert long.tag.startswith("gpu1/")
    assert len(long.tag) < 100


# The ends of turns


def turn(**members: Any) -> TurnNotice:
    fields: dict[str, Any] = {
        "session": "s",
        "agent": "demo",
        "title": "Fix it",
        "end": "done",
        "words": "",
        "seconds": 5.0,
    }
    return TurnNotice(**(fields | members))


@pytest.mark.parametrize(
    ("done", "only", "wanted"),
    [
        (Done(), None, False),
        (Done(sessions=("s",)), None, True),
        (Done(sessions=("s",)), "other", True),
        (Done(sessions=("other",)), None, False),
        (Done(after=0), None, True),
        (Done(after=2), None, True),
        (Done(after=3), None, False),
        (Done(after=2), "other", False),
        (Done(after=2), "s", True),
    ],
)
def test_the_end_of_a_turn_is_told_for_chosen_sessions_and_from_a_duration_on(
    done: Done, only: str | None, wanted: bool
) -> None:
    assert done.wants(turn(seconds=150.0), only) is wanted


def test_the_end_of_a_turn_is_told_at_once_and_stays_until_the_next_turn_begins() -> None:
    mailbox = Mailbox()
    mailbox.turn_ended(turn())
    mailbox.look([], NOON)
    (message,) = mailbox.waiting
    assert json.loads(message.content) == {"tag": tag_of("s"), "title": "Fix it is done", "sessionId": "s", "body": ""}
    mailbox.attempt(message)
    mailbox.sent(message)
    mailbox.look([], NOON + 1)
    assert mailbox.waiting == []
    mailbox.turn_began(tag_of("s"))
    (message,) = mailbox.waiting
    assert message.ends


def test_a_turn_that_begins_before_the_end_of_the_former_was_told_leaves_nothing_to_tell() -> None:
    quiet = Mailbox(quiet=Quiet(0, 1439))
    quiet.turn_ended(turn())
    assert quiet.look([], NOON) > NOON
    quiet.turn_began(tag_of("s"))
    assert quiet.look([], NOON + 86400) == inf
    assert quiet.waiting == []


def test_the_end_of_a_turn_waits_for_the_end_of_quiet_hours() -> None:
    mailbox = Mailbox(quiet=Quiet(0, 1439))
    mailbox.turn_ended(turn())
    over = mailbox.look([], NOON)
    assert mailbox.waiting == []
    mailbox.look([], over)
    assert len(mailbox.waiting) == 1


def test_where_a_notification_can_only_be_replaced_that_of_a_turn_stays() -> None:
    mailbox = Mailbox(replaces=True)
    mailbox.turn_ended(turn())
    mailbox.look([], NOON)
    (message,) = mailbox.waiting
    mailbox.attempt(message)
    mailbox.sent(message)
    mailbox.turn_began(tag_of("s"))
    assert (mailbox.waiting, mailbox.shown) == ([], {})


@pytest.mark.parametrize(
    ("end", "words", "full", "title", "body"),
    [
        ("done", "", True, "Fix it is done", ""),
        ("failed", "429: try again in 32 s", True, "Fix it has failed", "429: try again in 32 s"),
        ("stopped", "Stopped.", True, "Fix it was stopped", "Stopped."),
        ("failed", "429: try again in 32 s", False, "demo has failed", None),
    ],
)
def test_the_message_of_a_turn_says_how_it_has_ended(
    end: Any, words: str, full: bool, title: str, body: str | None
) -> None:
    content = json.loads(turn_content(turn(end=end, words=words), full=full))
    assert (content["title"], content.get("body")) == (title, body)
