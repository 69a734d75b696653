/** A question of the agent with fields, as JSON Schema describes them, or with a page to open. */
import { useState } from "../../../vendor/hooks.js";
import { html } from "../parts/html.js";
import { plain, visible } from "../../text/format.js";
import { Icon } from "../parts/icons.js";
import { safeLink } from "../../text/markdown.js";
import { Markdown } from "../transcript/parts.js";

/** Shows the question. `answer` gets the response: accept with content, decline or cancel. */
export function Elicitation({ params, answer, mayAnswer }) {
  const schema = params.requestedSchema ?? {};
  const fields = Object.entries(schema.properties ?? {});
  const required = new Set(schema.required ?? []);
  const [values, setValues] = useState(() => Object.fromEntries(fields.map(([name, field]) => [name, firstValue(field)])));
  const missing = fields.some(([name]) => required.has(name) && isEmpty(values[name]));
  const link = params.mode === "url" ? safeLink(plain(params.url)) : null;
  const accept = () => answer({ action: "accept", ...(link ? {} : { content: contentOf(fields, values) }) });
  return html`
    <header><${Icon} name="alert" /><h2>The agent asks</h2></header>
    <div class="permission-body">
      <${Markdown} text=${plain(params.message)} />
      ${params.mode === "url" && html`<p class="path">${visible(params.url)}</p>`}
      ${fields.map(([name, field]) => html`<${Field}
        key=${name} name=${name} field=${field} value=${values[name]} required=${required.has(name)} disabled=${!mayAnswer}
        onValue=${(value) => setValues((all) => ({ ...all, [name]: value }))} />`)}
    </div>
    ${mayAnswer && html`<div class="options">
      ${link
        ? html`<a class="option option-allow" href=${link} target="_blank" rel="noopener noreferrer" onClick=${accept}>Open the page</a>`
        : html`<button class="option option-allow" disabled=${missing} onClick=${accept}>Send</button>`}
      <button class="option option-reject" onClick=${() => answer({ action: "decline" })}>Decline</button>
    </div>`}
  `;
}

function Field({ name, field, value, required, disabled, onValue }) {
  const label = html`<span dir="auto">${visible(field.title ?? name)}${required ? "" : html` <span class="muted">optional</span>`}</span>`;
  const hint = field.description && html`<span class="muted" dir="auto">${visible(field.description)}</span>`;
  if (field.type === "boolean") {
    return html`<label class="field is-check">
      <input type="checkbox" checked=${value} disabled=${disabled} onChange=${(event) => onValue(event.target.checked)} />${label}${hint}
    </label>`;
  }
  if (field.type === "array") {
    const toggle = (one) => onValue(value.includes(one) ? value.filter((other) => other !== one) : [...value, one]);
    return html`<fieldset class="field" disabled=${disabled}><legend>${label}</legend>${hint}
      ${choicesOf(field.items ?? {})?.map((choice) => html`<label class="field is-check" key=${choice.value}>
        <input type="checkbox" checked=${value.includes(choice.value)} onChange=${() => toggle(choice.value)} />
        <span dir="auto">${visible(choice.name)}</span>
      </label>`)}
    </fieldset>`;
  }
  const choices = choicesOf(field);
  const set = (event) => onValue(event.target.value);
  return html`<label class="field">${label}${hint}
    ${choices
      ? html`<select disabled=${disabled} value=${value} onChange=${set}>
          <option value=""></option>
          ${choices.map((choice) => html`<option value=${choice.value}>${visible(choice.name)}</option>`)}
        </select>`
      : html`<input type=${/^(number|integer)$/.test(field.type) ? "number" : "text"} dir="auto" value=${value} disabled=${disabled} onInput=${set} />`}
  </label>`;
}

function choicesOf(field) {
  const titled = field.oneOf ?? field.anyOf;
  if (Array.isArray(titled)) return titled.map((one) => ({ value: one.const, name: one.title ?? one.const }));
  if (Array.isArray(field.enum)) return field.enum.map((value, i) => ({ value, name: field.enumNames?.[i] ?? value }));
  return null;
}

function firstValue(field) {
  if (field.type === "array") return Array.isArray(field.default) ? field.default : [];
  return field.default ?? (field.type === "boolean" ? false : "");
}

const isEmpty = (value) => value === undefined || value.length === 0;

/** The values as the schema's types want them, without fields left empty. */
function contentOf(fields, values) {
  const given = fields.filter(([name]) => !isEmpty(values[name]));
  return Object.fromEntries(given.map(([name, field]) => {
    const isNumber = /^(number|integer)$/.test(field.type);
    return [name, isNumber ? Number(values[name]) : values[name]];
  }));
}
