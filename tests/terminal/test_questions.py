"""Questions of the agent: which one is shown, and which key gives which answer."""

import pytest

from acp_gateway.terminal.content import Option
from acp_gateway.terminal.dialogue import FILL_IN, Question
from acp_gateway.terminal.forms import read_form
from acp_gateway.terminal.questions import NAMES, PAUSE, TEXT_SIZE, Questions, Review, keys, question_lines
from acp_gateway.terminal.rendering import Span
from tests.kit.updates import HOSTILE, plain_text

ALLOW, ALWAYS, REJECT = (
    Option("a", "Allow", "allow_once"),
    Option("aa", "Always allow", "allow_always"),
    Option("r", "Reject", "reject_once"),
)


def question(number: int, *options: Option) -> Question:
    return Question(number, {"title": f"Run {number}"}, options or (ALLOW, ALWAYS, REJECT))


@pytest.fixture
def questions() -> Questions:
    return Questions()


def test_the_oldest_question_is_shown_and_the_next_one_after_it(questions: Questions) -> None:
    assert questions.add(question(1), 0)
    assert not questions.add(question(2), 0)
    assert questions.waiting == 2
    assert questions.remove(7, 1) is None
    assert questions.remove(1, 1) == question(2)
    assert questions.remove(2, 1) is None
    assert questions.current is None


def test_removing_a_question_that_is_not_shown_shows_none(questions: Questions) -> None:
    questions.add(question(1), 0)
    questions.add(question(2), 0)
    assert questions.remove(2, 0) is None
    assert questions.current == question(1)


def test_digits_answer_in_order_and_y_and_n_only_once() -> None:
    assert keys((ALLOW, ALWAYS, REJECT)) == {"1": ALLOW, "2": ALWAYS, "3": REJECT, "y": ALLOW, "n": REJECT}
    assert keys((ALWAYS,)) == {"1": ALWAYS}
    other = Option("other", "MySQL", "allow_once")
    assert keys((ALLOW, other, REJECT)) == {"1": ALLOW, "2": other, "3": REJECT, "n": REJECT}
    assert keys(()) == {}


def test_a_key_answers_the_question_that_is_shown(questions: Questions) -> None:
    questions.add(question(1), 0)
    assert questions.key("y", PAUSE) == (question(1), ALLOW)
    assert questions.key("2", PAUSE) == (question(1), ALWAYS)
    assert [questions.key(key, PAUSE) for key in ("x", "4", "Y", "", "\n")] == [None] * 5


def test_a_key_that_was_pressed_before_a_question_could_be_read_answers_nothing(questions: Questions) -> None:
    assert questions.key("y", 0) is None
    questions.add(question(1), 10)
    questions.add(question(2), 10)
    assert questions.key("y", 10 + PAUSE / 2) is None
    questions.remove(1, 20)
    assert questions.key("y", 20 + PAUSE / 2) is None
    assert questions.key("y", 20 + PAUSE) == (question(2), ALLOW)


def test_the_name_of_a_decision_is_that_of_its_option(questions: Questions) -> None:
    questions.add(question(1), 0)
    assert [questions.name_of(word) for word in ("aa", "cancelled", "")] == ["Always allow", "cancelled", "nothing"]
    for number in range(NAMES + 1):
        questions.add(question(number, Option(f"o{number}", "x", "")), 0)
    assert questions.name_of("aa") == "aa"


def test_a_question_is_shown_with_its_command_and_the_keys_of_its_answers() -> None:
    text = {"type": "content", "content": {"type": "text", "text": "It deletes\nfiles."}}
    tool = {"title": "Run a command", "rawInput": {"command": "rm -r build"}, "content": [text]}
    assert plain_text(question_lines(Question(1, tool, (ALLOW, ALWAYS, REJECT)))) == (
        "? May the agent do this: Run a command\n    $ rm -r build\n    It deletes\n    files.\n"
        "  [y] Allow   [2] Always allow   [n] Reject\n"
    )


def test_a_form_says_where_it_can_be_filled_in() -> None:
    form = Question(1, {"title": "Your name?"}, (Option("decline", "Decline", "reject_once"),), is_form=True)
    assert plain_text(question_lines(form)) == (
        "? The agent asks: Your name?\n  Answer in an editor or on the page, or  [n] Decline\n"
    )


def test_a_form_names_its_fields_and_a_page_its_whole_address() -> None:
    fields = read_form({"properties": {"name": {"type": "string"}, "nick": {"type": "string"}}, "required": ["name"]})
    options = (Option("accept", "Fill in", FILL_IN), Option("decline", "Decline", "reject_once"))
    form = Question(1, {"title": "Who are you?"}, options, is_form=True, fields=fields or ())
    assert plain_text(question_lines(form)) == (
        "? The agent asks: Who are you?\n    name, nick (optional)\n  [f] Fill in   [n] Decline\n"
    )
    url = f"https://box.example/{'x' * 500}"
    page = Question(
        1, {"title": "Log in"}, (Option("accept", "Opened", "allow_once"), options[1]), is_form=True, url=url
    )
    assert plain_text(question_lines(page)) == f"? The agent asks: Log in\n    {url}\n  [y] Opened   [n] Decline\n"


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE.keys())
def test_hostile_questions_stay_in_their_lines(text: str) -> None:
    content = [{"type": "content", "content": {"type": "text", "text": text}}]
    tool = {"title": text, "kind": text, "rawInput": {"command": text}, "content": content}
    lines = plain_text(question_lines(Question(1, tool, (Option(text, text, text), ALLOW))))
    assert all(line.isprintable() for line in lines.split("\n"))
    # Only the first line is a question, and only the last one has answers; an explanation is indented.
    first, *others, last = lines.rstrip("\n").split("\n")
    assert first.startswith("? ")
    assert last.startswith("  [1]")
    assert all(line.startswith("    ") for line in others)
    assert [line for line in lines.split("\n") if "[y] Allow" in line and line.startswith("  [y]")] == []


def test_a_long_explanation_is_cut_visibly() -> None:
    content = [{"type": "content", "content": {"type": "text", "text": "x" * (TEXT_SIZE + 1)}}]
    lines = plain_text(question_lines(Question(1, {"title": "t", "content": content}, (ALLOW,)))).split("\n")
    assert lines[2] == "    …"


def test_the_rows_of_a_review_are_shown_once_and_in_order() -> None:
    review = Review([[Span(str(number))] for number in range(5)], 2)
    shown = [plain_text([review.place()])]
    while not review.is_over:
        shown.append(plain_text(review.take()))
    more = ": Space shows more; it can be allowed after the last\n"
    assert shown == [
        f"  5 rows{more}",
        f"0\n1\n  rows 1-2 of 5{more}",
        f"2\n3\n  rows 1-4 of 5{more}",
        "4\n  rows 1-5 of 5\n",
    ]


def test_keys_wait_after_more_of_a_question_was_shown(questions: Questions) -> None:
    questions.add(question(1), 0)
    questions.note_shown(5)
    assert questions.key("y", 5 + PAUSE / 2) is None
    assert questions.key("y", 5 + PAUSE) == (question(1), ALLOW)
