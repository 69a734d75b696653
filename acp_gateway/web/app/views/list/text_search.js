/** Sessions in whose texts the words of the filter are: the gateway searches, also what is not loaded here. */
import { useEffect, useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { sentence, titleOf, visible } from "../../text/format.js";
import { makeRoute } from "../../route/route.js";

/** Time in ms without a key before a search, and characters from which on one of ASCII is of use. */
const PAUSE = 400;
const SHORTEST = 3;

export function TextSearch({ words, search, sessions }) {
  const [answer, setAnswer] = useState(/** @type {any} */ (null));
  const wanted = words.trim();
  useEffect(() => {
    setAnswer(null);
    if (wanted === "") return undefined;
    if (wanted.length < SHORTEST && /^[\x00-\x7f]*$/.test(wanted)) return undefined;
    let isOver = false;
    const timer = setTimeout(() => {
      search(wanted).then(
        (found) => !isOver && setAnswer(found),
        (error) => !isOver && setAnswer({ found: [], complete: true, error: error.message }),
      );
    }, PAUSE);
    return () => {
      isOver = true;
      clearTimeout(timer);
    };
  }, [wanted]);
  const missing = answer?.missing ?? [];
  if (answer === null || (answer.found.length === 0 && answer.complete && missing.length === 0 && !answer.error)) return null;
  const known = new Map(sessions.map((session) => [session.id, session]));
  return html`<section class="group">
    <h2>In the text</h2>
    ${answer.error && html`<p class="empty">${sentence(answer.error)}</p>`}
    <ul>${answer.found.map((one) => html`<li key=${one.sessionId}>
      <a class="session" href=${makeRoute({ sessionId: one.sessionId, at: one.seq })}>
        <span class="session-title" dir="auto">${known.has(one.sessionId) ? titleOf(known.get(one.sessionId)) : visible(one.sessionId)}</span>
        <span class="session-facts" dir="auto">${marked(one)}</span>
      </a>
    </li>`)}</ul>
    ${!answer.complete && html`<p class="empty">Former sessions are still being read; later, there may be more.</p>`}
    ${missing.length > 0 && html`<p class="empty">Not searched, no answer: ${visible(missing.join(", "))}</p>`}
  </section>`;
}

/** The text with its found words marked. */
export function marked({ text, marks }) {
  // The gateway counts code points, a string of this language does not.
  const letters = [...text];
  const parts = [];
  let at = 0;
  for (const [begin, end] of marks) {
    parts.push(visible(letters.slice(at, begin).join("")), html`<mark>${visible(letters.slice(begin, end).join(""))}</mark>`);
    at = end;
  }
  parts.push(visible(letters.slice(at).join("")));
  return parts;
}
