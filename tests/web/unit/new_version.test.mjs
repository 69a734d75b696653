import assert from "node:assert/strict";
import { test } from "node:test";
import { createVersions } from "../../../acp_gateway/web/app/views/page/new_version.js";
import { manualTimers, settle } from "./helpers.mjs";

const pageOf = (version) => `<script type="module" src="./assets/${version}/page.js"></script>`;

/** A page of version a; `served` is the gateway's, null while it is away. `update` is what the worker's update finds. */
function scene({ served = "a", controller = {}, update = null, script = "https://box/gw/assets/a/page.js" } = {}) {
  const said = [];
  const did = [];
  const asked = [];
  const gateway = { served };
  const registration = { installing: null, waiting: null };
  registration.update = async () => {
    did.push("update");
    if (update === "fails") throw new TypeError("away");
    if (update === "found") registration.installing = {};
  };
  const serviceWorker = Object.assign(new EventTarget(), { controller, getRegistration: async () => registration });
  const hand = manualTimers();
  const window = {
    ...hand.timers,
    document: { baseURI: "https://box/gw/#/s/s1", querySelector: () => ({ src: script }) },
    navigator: { serviceWorker },
    location: { reload: () => did.push("reload") },
    fetch: async (url) => {
      asked.push(url);
      if (gateway.served === null) throw new TypeError("away");
      return { ok: gateway.served !== "refused", text: async () => pageOf(gateway.served) };
    },
  };
  const versions = createVersions({ window, timers: hand.timers });
  versions.subscribe((isOld) => said.push(isOld));
  const change = () => serviceWorker.dispatchEvent(new Event("controllerchange"));
  return { versions, gateway, said, did, asked, window, change, ...hand };
}

test("a page of the version that the gateway serves says nothing", async () => {
  const { versions, said, asked } = scene();
  await versions.check();
  assert.deepEqual([said, asked], [[], ["https://box/gw/"]]);
});

test("a page says once that the gateway serves another version", async () => {
  const { versions, gateway, said, asked } = scene();
  gateway.served = "b";
  await Promise.all([versions.check(), versions.check()]);
  await versions.check();
  assert.deepEqual([said, asked.length], [[true], 1]);
});

test("nothing is said where the gateway is away, refuses or serves no page, and it is asked again", async () => {
  const { versions, gateway, said, asked } = scene();
  for (const served of [null, "refused", "?"]) {
    gateway.served = served;
    await versions.check();
  }
  assert.deepEqual([said, asked.length], [[], 3]);
  const unknown = scene({ script: "https://box/gw/app/main.js", served: "b" });
  await unknown.versions.check();
  assert.deepEqual([unknown.said, unknown.asked], [[], []]);
});

test("a page from the gateway asks on its second connection, one that the worker kept on its first", async () => {
  for (const [controller, expected] of [[null, [0, 1]], [{}, [1, 2]]]) {
    const { versions, asked } = scene({ controller });
    const counts = [];
    for (const line of [1, 2]) {
      await versions.connected(line);
      counts.push(asked.length);
    }
    assert.deepEqual(counts, expected);
  }
});

test("a worker of another version that has taken over makes the page ask, the first worker does not", async () => {
  for (const [controller, said] of [[{}, [true]], [null, []]]) {
    const one = scene({ controller, served: "b" });
    one.change();
    await settle();
    assert.deepEqual(one.said, said);
  }
});

test("a page is loaded again after the new worker has taken over, or has not within 10 s", async () => {
  for (const end of [({ change }) => change(), ({ pass }) => pass(10_000)]) {
    const one = scene({ update: "found" });
    const loading = one.versions.reload();
    await settle();
    assert.deepEqual(one.did, ["update"]);
    end(one);
    await loading;
    assert.deepEqual([one.did, one.pending()], [["update", "reload"], []]);
  }
});

test("a page is loaded again at once where there is no other worker, or none at all", async () => {
  for (const update of [null, "fails"]) {
    const { versions, did } = scene({ update });
    await versions.reload();
    assert.deepEqual(did, ["update", "reload"]);
  }
  const { window, timers, did } = scene();
  await createVersions({ window: { ...window, navigator: {} }, timers }).reload();
  assert.deepEqual(did, ["reload"]);
});
