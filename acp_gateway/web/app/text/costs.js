/** What sessions have cost, in words for the page. Pure. */
import { countText, counted, oneLine } from "./format.js";

/**
 * @typedef {{costs: Record<string, number>, tokens: number, turns: number}} Amounts
 * @typedef {Amounts & {key: string, title?: string|null}} Sum
 * @typedef {{by: string, rows: Sum[], total: Amounts, more: number}} Costs - as `gateway/usage` tells it.
 */

/** What costs can be added up by, and the words for it. @type {[string, string][]} */
export const WAYS = [
  ["day", "Days"],
  ["session", "Sessions"],
  ["agent", "Agents"],
  ["identity", "People"],
];

/** How many days are looked at, and the words for it. @type {[number, string][]} */
export const PERIODS = [
  [7, "7 days"],
  [30, "30 days"],
  [365, "A year"],
];

/** Says money, each currency for itself; empty for nothing. @param {Record<string, number>|undefined} costs */
export function moneyText(costs) {
  return Object.entries(costs ?? {})
    .filter(([, cost]) => cost > 0)
    .map(([currency, cost]) => `${cost < 0.01 ? "< 0.01" : cost.toFixed(2)} ${oneLine(currency, 3)}`)
    .join(" + ");
}

/** Says in short what a session has cost; empty for nothing. @param {{costs: Record<string, number>, tokens: number}|null|undefined} usage */
export function spentText(usage) {
  return moneyText(usage?.costs) || (usage?.tokens ? `${countText(usage.tokens)} tokens` : "");
}

/** Says what turns have cost, with their number. @param {Amounts} amounts */
export function sumText({ costs, tokens, turns }) {
  return [moneyText(costs), tokens > 0 && `${countText(tokens)} tokens`, counted(turns, "turn")].filter(Boolean).join(" · ");
}

/**
 * The part of each row in the largest one, from 0 to 1: of money where all is in one currency, else of tokens.
 * @param {Sum[]} rows
 */
export function partsOf(rows) {
  const currencies = new Set(rows.flatMap(({ costs }) => Object.keys(costs)));
  const [currency] = currencies;
  const sizeOf = (/** @type {Sum} */ { costs, tokens }) => (currencies.size === 1 ? (costs[currency ?? ""] ?? 0) : tokens);
  const most = Math.max(0, ...rows.map(sizeOf));
  return rows.map((row) => (most === 0 ? 0 : sizeOf(row) / most));
}

/** The first of so many days up to that of a time, in ISO 8601. @param {number} days @param {number} now */
export function firstDay(days, now) {
  const date = new Date(now);
  date.setDate(date.getDate() - days + 1);
  const two = (/** @type {number} */ number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}-${two(date.getMonth() + 1)}-${two(date.getDate())}`;
}
