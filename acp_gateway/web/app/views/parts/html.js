/** Markup without a build step: html`<p>${text}</p>` is a vnode. */
import htm from "../../../vendor/htm.js";
import { h } from "../../../vendor/preact.js";

export const html = htm.bind(h);
