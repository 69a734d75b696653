/** The ports of agents' programs, as the page shows them. Pure. */
import { visible } from "./format.js";

/** @typedef {{port: number, program: string}} Port - as `ports/list` tells it. */

/** Chips that are shown at most: a program may listen on many. */
const MOST = 6;

/** Says which port it is. @param {Port} port */
export function portText({ port, program }) {
  return program === "" ? `${port}` : `${port} · ${visible(program)}`;
}

/**
 * Reads the answer to `ports/list`; none of what is not understood.
 * @param {any} answer
 * @returns {{ports: Port[], opens: boolean}}
 */
export function readPorts(answer) {
  const ports = Array.isArray(answer?.ports) ? answer.ports : [];
  const read = ports.filter((/** @type {any} */ it) => Number.isInteger(it?.port) && typeof it.program === "string");
  return { ports: read.slice(0, MOST), opens: answer?.previews === true };
}
