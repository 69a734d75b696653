/** Icons as SVG elements: lines on a grid of 20 units, in the colour of the text around them. */
import { html } from "./html.js";

const PATHS = {
  alert: "M10 3.5 17.5 16.5h-15zM10 8.5v3.5M10 14.4v.1",
  archive: "M3 4.5h14v3.5H3zM4.5 8v8h11V8M8 11h4",
  attach: "m15.5 9.5-5.6 5.6a3.4 3.4 0 0 1-4.8-4.8l6-6a2.3 2.3 0 0 1 3.2 3.2l-5.9 5.9a1.1 1.1 0 0 1-1.6-1.6l5.2-5.2",
  back: "m12 4.5-5.5 5.5 5.5 5.5",
  bell: "M5.5 13.5V9a4.5 4.5 0 0 1 9 0v4.5l1.5 1.5H4zM8.5 17h3",
  changes: "M6 3.5v7M2.5 7h7M10.5 14.5h7M15 3.5l-10 13",
  beside: "M3 4.5h14v11H3zM10 4.5v11",
  board: "M3 4h4v12H3zM8 4h4v7H8zM13 4h4v9.5h-4z",
  check: "m4.5 10.5 3.5 3.5 7.5-8",
  chevron: "m8 5.5 4.5 4.5L8 14.5",
  circle: "M10 4.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11",
  close: "m5.5 5.5 9 9M14.5 5.5l-9 9",
  copy: "M7.5 7.5h8v8h-8zM12.5 7.5v-3h-8v8h3",
  delete: "M4 6h12M8 6V4h4v2M5.5 6l.8 10.5h7.4L14.5 6M8.5 9v4.5M11.5 9v4.5",
  down: "M10 4v12M5 11l5 5 5-5",
  edit: "m4 16 .8-3.4L13.2 4.2l2.6 2.6-8.4 8.4zM11.5 6l2.5 2.5",
  editor: "M9 5H4.5v10.5H15V11M11.5 4H16v4.5M16 4l-7 7",
  execute: "M3 4.5h14v11H3zM6 8l2.2 2L6 12M10.5 12.5h3.5",
  eye: "M2.5 10s2.8-5 7.5-5 7.5 5 7.5 5-2.8 5-7.5 5-7.5-5-7.5-5M10 7.8a2.2 2.2 0 1 0 0 4.4 2.2 2.2 0 0 0 0-4.4",
  fetch: "M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14M3 10h14M10 3c4.5 4.5 4.5 9.5 0 14M10 3c-4.5 4.5-4.5 9.5 0 14",
  folder: "M3 5.5h5l1.5 2H17v8.5H3z",
  leave: "M8.5 4H4v12h4.5M12 6.5l3.5 3.5-3.5 3.5M15 10H8",
  coins: "M5 6c0-1.4 2.2-2.5 5-2.5s5 1.1 5 2.5-2.2 2.5-5 2.5-5-1.1-5-2.5v8c0 1.4 2.2 2.5 5 2.5s5-1.1 5-2.5V6M5 10c0 1.4 2.2 2.5 5 2.5s5-1.1 5-2.5",
  load: "M3 16.5h14M5 16.5v-4M8.3 16.5v-8M11.6 16.5V11M15 16.5v-12",
  menu: "M5 10v.1M10 10v.1M15 10v.1",
  move: "M4 10h12M11.5 5.5 16 10l-4.5 4.5",
  other: "M12.5 3.5a4 4 0 0 0-3.8 5.2L3.8 13.6a1.8 1.8 0 0 0 2.6 2.6l4.9-4.9a4 4 0 0 0 5-5L14 8.6 11.4 6z",
  plan: "M8 5.5h9M8 10h9M8 14.5h9M3 5.5l1 1 1.7-2M3 10l1 1 1.7-2M3.5 14.5h1",
  plus: "M10 4.5v11M4.5 10h11",
  read: "M5 3h6.5L15 6.5V17H5zM11.5 3v3.5H15M7.5 10h5M7.5 13h5",
  search: "M9 3.5a5.5 5.5 0 1 0 0 11 5.5 5.5 0 0 0 0-11M13 13l3.8 3.8",
  send: "M10 16V4.5M5 9l5-5 5 5",
  share: "M10 12.5V3.5M6.5 6.5 10 3l3.5 3.5M5 10v6.5h10V10",
  stop: "M6 6h8v8H6z",
  switch_mode: "M4 7h11M12 4l3 3-3 3M16 13H5M8 10l-3 3 3 3",
  think: "M10 3a5 5 0 0 0-2.8 9.1c.5.4.8.9.8 1.5h4c0-.6.3-1.1.8-1.5A5 5 0 0 0 10 3M8.3 16.5h3.4",
  up: "M10 16V4M5 9l5-5 5 5",
  wrap: "M3 5h14M3 10h11.5a2.5 2.5 0 0 1 0 5H10M12 13l-2 2 2 2M3 15h3.5",
};

/** An icon by its name; hidden from screen readers, so what it says must stand in words beside it. */
export function Icon({ name }) {
  const known = Object.hasOwn(PATHS, name) ? name : "other";
  return html`<svg class="icon icon-${known}" viewBox="0 0 20 20" aria-hidden="true" focusable="false">
    <path d=${PATHS[known]} />
  </svg>`;
}
