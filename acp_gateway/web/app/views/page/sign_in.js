/** The page for a browser that is not signed in, and the requests that sign in and out. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { sentence } from "../../text/format.js";
import { ask, NoAnswer } from "../../net/http.js";
import { Icon } from "../parts/icons.js";
import { keep, read } from "../../state/kept.js";

const CODE = /acpgwp_[A-Za-z0-9_-]+/;

/** Time in ms until a browser that could not sign out tries it again. */
const RETRY = 1000;

/** Exchange a one-use code for the cookie. Throws an Error with a text for people; a NoAnswer if trying again may help. */
export async function signIn(code) {
  const { ok, status, text } = await post("./login", { code }).catch((error) => {
    throw error instanceof TypeError ? new NoAnswer("The gateway can't be reached.") : error;
  });
  if (ok) return JSON.parse(text);
  throw new Error(oneSentence(text) || `The gateway answers ${status}.`);
}

/** Name of the note in the browser that the session has to end. */
const leaving = () => `signing out ${new URL("./", document.baseURI)}`;

/** End this browser's session. Returns false if the gateway can't do that now: the next load of the page goes on. */
export async function signOut(kept) {
  // Where there is no room for it, only this load of the page tries.
  keep(kept, leaving(), "");
  const isDone = await post("./logout", {}).then(({ status }) => status < 500, () => false);
  if (isDone) keep(kept, leaving(), null);
  return isDone;
}

/** End the session that an earlier load of the page could not end. Returns once that is done; `onFailure` is called before each further try. */
export async function finishSignOut(kept, onFailure) {
  while (read(kept, leaving()) !== null && !(await signOut(kept))) {
    onFailure();
    await new Promise((resolve) => setTimeout(resolve, RETRY));
  }
}

/**
 * Ask the gateway whether this browser is signed in: a page is not told why its WebSocket was refused. With POST, because
 * browsers send no Origin with GET, and the gateway believes a cookie only together with it.
 */
export async function isSignedIn() {
  const { status } = await post("./ws", {});
  return status !== 401 && status !== 403;
}

function post(path, body) {
  const url = new URL(path, document.baseURI);
  return ask(window, url, { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
}

function oneSentence(text) {
  return text.trim().split("\n", 1)[0].slice(0, 300);
}

/**
 * `problem`: why the browser has to sign in again, or null; it may come later. `code`: one that can be tried again, or null. `left`: what was not sent, or null;
 * `onForget` removes that from the browser, if it is kept. `done` is called when the browser has signed in.
 */
export function SignIn({ problem, code, left, onForget, done }) {
  const [text, setText] = useState(code ?? "");
  const [tried, setTried] = useState(/** @type {any} */ (null));
  const state = tried ?? { busy: false, error: problem };
  const submit = async (event) => {
    event.preventDefault();
    const code = CODE.exec(text)?.[0];
    if (!code) {
      setTried({ busy: false, error: "That is not a sign-in code. It begins with acpgwp_." });
      return;
    }
    setTried({ busy: true, error: null });
    try {
      await signIn(code);
      done();
    } catch (error) {
      setTried({ busy: false, error: error.message });
    }
  };
  return html`<main class="sign-in">
    <div class="sign-in-card">
      <img class="logo" alt="" width="56" height="56" src=${new URL("../../../icons/icon.svg", import.meta.url).href} />
      <h1>Sign in to this gateway</h1>
      <p>On the gateway's machine, or on a laptop with a token, run</p>
      <pre class="command-text">acp-gateway open</pre>
      <p>and open the link that it prints, or paste it here.</p>
      <form onSubmit=${submit}>
        <label class="field"><span>Link or code</span>
          <input type="text" autocomplete="off" autocapitalize="off" spellcheck=${false} placeholder="acpgwp_…" required
            value=${text} onInput=${(event) => setText(event.target.value)} />
        </label>
        <p class="error" role="alert">${sentence(state.error)}</p>
        <button class="primary" disabled=${state.busy}>${state.busy ? "Signing in…" : "Sign in"}<${Icon} name="move" /></button>
      </form>
      ${left && html`<p class="left" role="status">${left}</p>`}
      ${left && onForget && html`<button type="button" class="secondary" onClick=${onForget}>Remove what was not sent</button>`}
    </div>
  </main>`;
}
