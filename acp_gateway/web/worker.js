/**
 * Shows notifications, also while no page is open, and answers the question of one by its buttons. Browsers on phones
 * show notifications of a service worker only.
 *
 * It keeps the files of the page, so that the page opens without the gateway. It keeps nothing of a person.
 */

/** The folder of the files of this version, which its name tells from every other one. */
const ASSETS = "{assets}";

/** The files that the page needs before it has a connection. */
const SHELL = ["./", ...["page.js", "style.css", "icons/icon.svg"].map((name) => `${ASSETS}/${name}`)];

/** Time in ms for an answer to reach the gateway. */
const ANSWER_TIMEOUT = 15000;

/** Kinds of options whose buttons come first where not all fit: they decide nothing but this question. */
const FIRST = ["allow_once", "reject_once"];

const SCOPE = self.registration.scope;

/** Beginning of the names of this worker's caches: gateways at other paths of the same host have others. */
const CACHE = `shell ${SCOPE} `;

const ICON = new URL("./favicon.ico", SCOPE).href;

self.addEventListener("install", (event) => event.waitUntil(keepShell()));

self.addEventListener("activate", (event) => event.waitUntil(forgetOthers().then(() => self.clients.claim())));

self.addEventListener("fetch", (event) => {
  const { request } = event;
  const url = request.url.split(/[?#]/)[0];
  const isPage = request.mode === "navigate" && url === SCOPE;
  if (request.method !== "GET" || !(isPage || url.startsWith(new URL("./assets/", SCOPE).href))) return;
  event.respondWith(keptOr(request, isPage ? SCOPE : url));
});

self.addEventListener("push", (event) => event.waitUntil(told(event.data.json())));

self.addEventListener("pushsubscriptionchange", (event) => event.waitUntil(subscribeAgain(event.newSubscription)));

self.addEventListener("notificationclick", (event) => {
  const { action, notification } = event;
  notification.close();
  event.waitUntil(action ? decide(notification, action) : show(notification.data.hash));
});

/** Keep the files of this version, all or none. The page of another version is not kept with them. */
async function keepShell() {
  const cache = await self.caches.open(CACHE + ASSETS);
  await cache.addAll(SHELL.map((name) => new URL(name, SCOPE).href));
  const page = await cache.match(SCOPE);
  if (!(await page.text()).includes(`${ASSETS}/page.js`)) {
    await self.caches.delete(CACHE + ASSETS);
    throw new Error("the page is of another version than this worker");
  }
  // Pages of the version before have their program already, and their files stay until this one is replaced.
  await self.skipWaiting();
}

/** Remove the files of all versions but this one and the one before, which open pages may still need. */
async function forgetOthers() {
  const others = (await self.caches.keys()).filter((name) => name.startsWith(CACHE) && name !== CACHE + ASSETS);
  for (const name of others.slice(0, -1)) await self.caches.delete(name);
}

/** The kept file of an address: of this version first. The network's where there is none, or it can't be read. */
async function keptOr(request, url) {
  return (await kept(url).catch(() => undefined)) ?? fetch(request);
}

async function kept(url) {
  const own = await self.caches.open(CACHE + ASSETS);
  return (await own.match(url)) ?? (url === SCOPE ? undefined : self.caches.match(url));
}

/** Show what the gateway tells of a question or of the end of a turn, or take it away. Some browsers punish a message that shows nothing. */
async function told(message) {
  const isSeen = (await pages()).some((page) => page.visibilityState === "visible");
  if (message.decided) return takeAway(message, isSeen);
  const { tag, title, body = "", sessionId, requestId, machine = "", options = [] } = message;
  const question = requestId === undefined ? "" : `/r/${encodeURIComponent(requestId)}`;
  const place = sessionId === undefined ? "" : `s/${encodeURIComponent(sessionId)}${question}`;
  return self.registration.showNotification(title, {
    tag,
    body,
    icon: ICON,
    silent: isSeen,
    actions: buttons(options, self.Notification?.maxActions ?? 0),
    data: { hash: `#/${place}`, sessionId, requestId, machine },
  });
}

async function takeAway({ tag, replace }, isSeen) {
  const [former] = await self.registration.getNotifications({ tag });
  if (replace) {
    const options = { tag, body: former?.body ?? "", icon: ICON, silent: true, data: former?.data ?? { hash: "#/" } };
    await self.registration.showNotification("Decided", options);
    if (!isSeen) return;
  }
  for (const one of await self.registration.getNotifications({ tag })) one.close();
}

/** The buttons for as many options as the browser shows. */
function buttons(options, most) {
  const order = (option) => (FIRST.includes(option.kind) ? FIRST.indexOf(option.kind) : FIRST.length);
  const chosen = options.length <= most ? options : [...options].sort((a, b) => order(a) - order(b)).slice(0, most);
  return chosen.map(({ optionId, name }) => ({ action: optionId, title: name }));
}

/**
 * Answer a question with an option, at the machine that has asked. What goes wrong is shown in its place, and leads to the
 * question.
 */
async function decide({ title, tag, data }, optionId) {
  const { requestId, machine } = data;
  const sessionId = machine ? data.sessionId.slice(machine.length + 1) : data.sessionId;
  const response = { outcome: { outcome: "selected", optionId } };
  const { problem } = await call("session/respond", { sessionId, requestId, response }, machine);
  if (problem !== null) await self.registration.showNotification(title, { tag, body: `Not answered: ${problem}`, icon: ICON, data });
}

/**
 * Tell the gateway of the subscription that takes the place of one that the browser has ended. Where that fails, the
 * page does it when it is opened.
 */
async function subscribeAgain(made) {
  const { result } = await call("push/get", {});
  if (!result) return;
  const { key, quiet, session, done } = result;
  const found = made ?? (await self.registration.pushManager.subscribe({ userVisibleOnly: true, applicationServerKey: key }));
  const keys = { p256dh: encoded(found.getKey("p256dh")), auth: encoded(found.getKey("auth")) };
  await call("push/subscribe", { endpoint: found.endpoint, ...keys, ...(quiet && { quiet }), ...(session && { session }), ...(done && { done }) });
}

/** Bytes in base64url. */
function encoded(bytes) {
  const text = btoa(String.fromCharCode(...new Uint8Array(bytes)));
  return text.replaceAll("+", "-").replaceAll("/", "_").replaceAll("=", "");
}

/**
 * Call the gateway, or a machine that it leads to, as the browser that is signed in here. Returns its result, and why that
 * failed, or null.
 */
function call(method, params, machine) {
  const path = machine ? `./nodes/${machine}/ws` : "./ws";
  return new Promise((resolve) => {
    const socket = new WebSocket(new URL(path, SCOPE).href.replace(/^http/, "ws"));
    const end = (problem, result) => {
      clearTimeout(timer);
      resolve({ problem, result });
      socket.close();
    };
    const timer = setTimeout(() => end("the gateway does not answer."), ANSWER_TIMEOUT);
    socket.onopen = () => socket.send(JSON.stringify({ jsonrpc: "2.0", id: 1, method, params }));
    socket.onmessage = (event) => {
      const message = JSON.parse(event.data);
      if (message.id === 1) end(message.error?.message ?? null, message.result);
    };
    socket.onclose = () => end("the gateway can't be reached, or this browser is not signed in any more.");
  });
}

async function pages() {
  const found = await self.clients.matchAll({ type: "window", includeUncontrolled: true });
  return found.filter((each) => each.url.startsWith(SCOPE));
}

/** Bring a page that is open to the front and tell it the fragment to show; open one where there is none. */
async function show(hash) {
  const [page] = await pages();
  if (page === undefined) return self.clients.openWindow(new URL(hash, SCOPE).href);
  page.postMessage({ hash });
  return page.focus();
}
