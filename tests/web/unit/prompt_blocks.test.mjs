import assert from "node:assert/strict";
import { test } from "node:test";
import { completionAt, matchingCommands, promptBlocks, promptHistory } from "../../../acp_gateway/web/app/text/prompt_blocks.js";

const context = (members) => ({ mentions: new Set(), attachments: [], cwd: "/w", embeds: true, ...members });

test("text is one block, and a path that was not chosen from the list stays text", () => {
  assert.deepEqual(promptBlocks("mail ann@example.org about @nothing", context()), [
    { type: "text", text: "mail ann@example.org about @nothing" },
  ]);
});

test("chosen paths become links between the text around them", () => {
  const mentions = new Set(["a b.txt".replace(" ", "_"), "src/ä.py"]);
  assert.deepEqual(promptBlocks("@src/ä.py and @a_b.txt, please @a_b.txt", context({ mentions })), [
    { type: "resource_link", uri: "file:///w/src/%C3%A4.py", name: "src/ä.py" },
    { type: "text", text: " and @a_b.txt, please " },
    { type: "resource_link", uri: "file:///w/a_b.txt", name: "a_b.txt" },
  ]);
});

test("an agent that takes no embedded resources gets a file as text, in a fence that it can't end", () => {
  const attachments = [{ name: "x.md", text: "```\ncode\n````" }];
  const [block] = promptBlocks("", context({ attachments, embeds: false }));
  assert.equal(block.text, "x.md:\n\n`````\n```\ncode\n````\n`````");
});

test("images and files follow the text", () => {
  const attachments = [{ name: "a", data: "AA==", mimeType: "image/png" }, { name: "b c.txt", text: "hi" }];
  assert.deepEqual(promptBlocks("look", context({ attachments })), [
    { type: "text", text: "look" },
    { type: "image", mimeType: "image/png", data: "AA==" },
    { type: "resource", resource: { uri: "attachment:///b%20c.txt", mimeType: "text/plain", text: "hi" } },
  ]);
});

test("a completion begins with a slash at the very beginning, or with @ at the beginning of a word", () => {
  assert.deepEqual(completionAt("/re", 3), { kind: "command", query: "re", start: 0, end: 3 });
  assert.equal(completionAt("/re view", 8), null);
  assert.equal(completionAt("see /re", 7), null);
  assert.deepEqual(completionAt("see @sr and", 7), { kind: "file", query: "sr", start: 4, end: 7 });
  assert.equal(completionAt("ann@example", 11), null);
  assert.deepEqual(completionAt("line\n@", 6), { kind: "file", query: "", start: 5, end: 6 });
});

test("commands that begin with what was typed come first", () => {
  const commands = ["preview", "review", "compact"].map((name) => ({ name }));
  assert.deepEqual(matchingCommands(commands, "RE").map(({ name }) => name), ["review", "preview"]);
});

test("the history has the text of each prompt once, the last one first", () => {
  const user = (text) => ({ kind: "user", parts: [{ type: "text", text }] });
  const blocks = [user("one"), { kind: "agent", parts: [] }, user("two"), user("one"), { kind: "user", parts: [{ type: "image" }] }];
  assert.deepEqual(promptHistory(blocks), ["one", "two"]);
  assert.deepEqual(promptHistory(blocks, 1), ["one"]);
});
