/** How busy machines are, in words and parts for the page. Pure. */
import { counted, oneLine, sizeText } from "../text/format.js";

/**
 * @typedef {{memory: number|null, agentType?: string, sessionId?: string, title?: string}} Holder
 * @typedef {{name: string, use: number|null, total: number|null, used: number|null, temperature: number|null, holders: Holder[]}} Gpu
 * @typedef {{cpus: number, busy: number, memory: {total: number, free: number|null}|null,
 *   disks: {path: string, total: number, free: number}[], gpus: Gpu[], problem: string|null}} Load - as `gateway/machine` tells it.
 * @typedef {{key: string, label: string, text: string, part: number|null, holders: {key: string, text: string, sessionId: string|null}[]}} Row -
 *   `part` is the used part, from 0 to 1.
 */

/** Part of a GPU below which it counts as free, as for the gateway's own commands. */
const FREE_BELOW = 0.1;

/** @param {Gpu} gpu */
function isFree({ use, total, used }) {
  const isHeld = total !== null && used !== null && used > FREE_BELOW * total;
  return !isHeld && (use === null || use < FREE_BELOW);
}

/** Says what of a machine is free. @param {Load} load */
export function freeText({ gpus, cpus, busy, memory }) {
  const parts = gpus.length > 0 ? [`${gpus.filter(isFree).length} of ${counted(gpus.length, "GPU")}`] : [];
  parts.push(`${Math.max(0, Math.round(cpus - busy))} of ${cpus} CPUs`);
  if (memory !== null && memory.free !== null) parts.push(`${sizeText(memory.free)} memory`);
  return `${parts.join(", ")} free`;
}

/**
 * The rows of a machine's card.
 * @param {string} machine - its name; empty for this one.
 * @param {Load} load
 * @returns {Row[]}
 */
export function rowsOf(machine, { cpus, busy, memory, disks, gpus }) {
  const rows = [row("cpu", "Processors", `${busy.toFixed(1)} of ${cpus} busy`, busy / cpus)];
  if (memory !== null) rows.push(space("memory", "Memory", memory));
  rows.push(...disks.map((disk) => space(`disk ${disk.path}`, `Disk of ${oneLine(disk.path, 64)}`, disk)));
  rows.push(...gpus.map((gpu, index) => ({ ...gpuRow(index, gpu), holders: gpu.holders.map((holder) => holderOf(machine, holder)) })));
  return rows;
}

/** @param {string} key @param {string} label @param {string} text @param {number|null} part @returns {Row} */
function row(key, label, text, part) {
  return { key, label, text, part: part === null ? null : Math.min(1, Math.max(0, part)), holders: [] };
}

/** @param {string} key @param {string} label @param {{total: number, free: number|null}} sizes */
function space(key, label, { total, free }) {
  if (free === null) return row(key, label, sizeText(total), null);
  return row(key, label, `${sizeText(free)} of ${sizeText(total)} free`, total === 0 ? null : (total - free) / total);
}

/** @param {number} index @param {Gpu} gpu */
function gpuRow(index, gpu) {
  const parts = [isFree(gpu) ? "free" : "in use"];
  if (gpu.use !== null) parts.push(`${Math.round(gpu.use * 100)} %`);
  if (gpu.used !== null && gpu.total !== null) parts.push(`${sizeText(gpu.used)} of ${sizeText(gpu.total)}`);
  if (gpu.temperature !== null) parts.push(`${gpu.temperature} °C`);
  return row(`gpu ${index}`, `GPU ${index}, ${oneLine(gpu.name, 64)}`, parts.join(", "), gpu.use ?? (gpu.total ? (gpu.used ?? 0) / gpu.total : null));
}

/** @param {string} machine @param {Holder} holder */
function holderOf(machine, { memory, agentType, sessionId, title }) {
  const name = title ?? sessionId ?? agentType ?? "other programs";
  const size = memory === null || memory === undefined ? "" : ` · ${sizeText(memory)}`;
  const id = sessionId === undefined ? null : machine === "" ? sessionId : `${machine}/${sessionId}`;
  return { key: id ?? name, text: `${oneLine(name, 80)}${size}`, sessionId: id };
}
