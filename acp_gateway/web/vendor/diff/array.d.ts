export * from "diff/libesm/diff/array.js";
