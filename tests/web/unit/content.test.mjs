import assert from "node:assert/strict";
import { test } from "node:test";

import { locationsOf, partOf, planOf, toolContentOf } from "../../../acp_gateway/web/app/updates/content.js";
import { forSeeds, text } from "./helpers.mjs";

test("each kind of content block becomes its part", () => {
  assert.deepEqual(partOf(text("a")), { type: "text", text: "a" });
  assert.deepEqual(partOf({ type: "image", mimeType: "image/png", data: "AAAA", uri: "x" }), {
    type: "image",
    src: "data:image/png;base64,AAAA",
    mimeType: "image/png",
    uri: "x",
  });
  assert.equal(partOf({ type: "audio", mimeType: "audio/wav", data: "AAAA" }).src, "data:audio/wav;base64,AAAA");
  assert.deepEqual(partOf({ type: "resource_link", uri: "file:///a", name: "a", size: 5 }), {
    type: "link",
    uri: "file:///a",
    name: "a",
    title: "",
    description: "",
    mimeType: "",
    size: 5,
  });
  const resource = { uri: "file:///a", mimeType: "text/plain" };
  assert.deepEqual(partOf({ type: "resource", resource: { ...resource, text: "abc" } }), {
    type: "resource",
    ...resource,
    text: "abc",
    size: 3,
  });
  assert.deepEqual(partOf({ type: "resource", resource: { ...resource, blob: "AAAA" } }), {
    type: "resource",
    ...resource,
    text: null,
    size: 3,
  });
});

test("an image that is not a bitmap, or not base64, has no source", () => {
  for (const block of [
    { mimeType: "image/svg+xml", data: "AAAA" },
    { mimeType: "text/html", data: "AAAA" },
    { mimeType: "image/png", data: 'A"onerror=' },
    { mimeType: "image/png", data: "" },
    { mimeType: "image/png", data: ["AAAA"] },
    { mimeType: "image/png" },
    { mimeType: "image/png,x;image/png", data: "AAAA" },
    {},
  ]) {
    assert.equal(partOf({ type: "image", ...block }).src, null, JSON.stringify(block));
  }
});

test("each kind of tool content is read", () => {
  assert.deepEqual(
    toolContentOf([
      { type: "content", content: text("a") },
      { type: "diff", path: "/a", oldText: null, newText: "x" },
      { type: "diff", path: "/a", oldText: "", newText: "" },
      { type: "terminal", terminalId: "t" },
      { type: "session", sessionId: "s" },
      { type: "hologram" },
      7,
    ]),
    [
      { type: "content", part: text("a") },
      { type: "diff", path: "/a", oldText: null, newText: "x" },
      { type: "diff", path: "/a", oldText: "", newText: "" },
      { type: "terminal", terminalId: "t" },
      { type: "session", sessionId: "s" },
      { type: "unknown", raw: { type: "hologram" } },
      { type: "unknown", raw: 7 },
    ],
  );
});

test("changes of files are named, by the diff alone if there is one", () => {
  const moved = { operation: "move", path: "/b", oldPath: "/a", fileType: "text" };
  const gone = { operation: "delete", path: "/c", oldPath: "", fileType: "" };
  const named = (text, change) => ({ type: "content", content: { type: "text", text }, _meta: { "acp-gateway": { change } } });
  const diff = { type: "diff", path: "/b", oldText: "x", newText: "y" };
  const list = [
    named("moved: /a → /b", moved),
    { ...diff, _meta: { "acp-gateway": { change: moved } } },
    named("deleted: /c", { operation: "delete", path: "/c" }),
    diff,
  ];
  assert.deepEqual(toolContentOf(list), [{ ...diff, change: moved }, { type: "change", change: gone }, diff]);
});

test("plans and locations leave out what is not an object", () => {
  assert.deepEqual(planOf([{ content: "a", priority: "high", status: "completed" }, null, "x", {}]), [
    { content: "a", priority: "high", status: "completed" },
    { content: "", priority: "medium", status: "pending" },
  ]);
  assert.deepEqual(locationsOf([{ path: "/a", line: 3 }, { path: "/b", line: "4" }, null]), [
    { path: "/a", line: 3 },
    { path: "/b", line: null },
  ]);
  assert.deepEqual([planOf("x"), locationsOf({}), toolContentOf(null)], [[], [], []]);
});

test("whatever an agent sends, members have the types they promise", () => {
  forSeeds(2000, (random) => {
    const value = () => random.pick([null, undefined, 5, "x", true, [], {}, ["a"], { a: 1 }, { toString: 1 }, NaN]);
    const names = ["text", "data", "mimeType", "uri", "name", "title", "description", "size", "resource"];
    const block = { type: random.pick(["text", "image", "audio", "resource_link", "resource", "x", 5]) };
    for (const name of names) if (random.maybe(0.6)) block[name] = value();
    const part = partOf(block);
    if (part.type === "unknown") return;
    for (const [name, member] of Object.entries(part)) {
      if (name === "size") assert.ok(member === null || Number.isFinite(member));
      else if (name === "src" || (part.type === "resource" && name === "text"))
        assert.ok(member === null || typeof member === "string");
      else assert.equal(typeof member, "string", `${part.type} ${name}`);
    }
  });
});
