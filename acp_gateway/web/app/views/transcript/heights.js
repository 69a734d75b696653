/**
 * Where each block of a transcript is: measured heights, estimates for those never shown, and their sums.
 *
 * A change costs only the sums behind it, so that a growing last block costs nothing, whatever stands above.
 */

/** Heights of a list of blocks, in CSS pixels. */
export class Heights {
  /** @param {(block: {key: string}) => number} estimate height of a block that was not measured yet */
  constructor(estimate) {
    this.estimate = estimate;
    /** @type {Map<string, number>} measured heights by the key of the block */
    this.measured = new Map();
  }

  /** @type {string[]} keys of the blocks, in their order */
  keys = [];
  sizes = new Float64Array(64);
  tops = new Float64Array(65);
  /** The number of entries of `tops` that are right. */
  valid = 1;
  /** @type {Map<string, number>} */
  index = new Map();

  clear() {
    this.keys = [];
    this.sizes = new Float64Array(64);
    this.tops = new Float64Array(65);
    this.valid = 1;
    this.index = new Map();
  }

  get length() {
    return this.keys.length;
  }

  /**
   * Take the list of blocks as it is now; it may be the same array, with more in it. What is appended costs only itself,
   * another beginning costs all.
   */
  update(blocks) {
    const last = this.keys.length - 1;
    const appended = last >= 0 && blocks.length > last && blocks[0].key === this.keys[0] && blocks[last].key === this.keys[last];
    if (!appended) this.clear();
    this.#reserve(blocks.length);
    for (let i = this.keys.length; i < blocks.length; i += 1) {
      const { key } = blocks[i];
      this.keys.push(key);
      this.index.set(key, i);
      this.#resize(i, this.measured.get(key) ?? this.estimate(blocks[i]));
    }
  }

  /** Take the measured height of a block. Returns whether it is another one. */
  measure(i, height) {
    this.measured.set(this.keys[i], height);
    return this.#resize(i, height);
  }

  /** Distance of a block's upper edge from the beginning; `top(length)` is the height of all. */
  top(i) {
    for (; this.valid <= i; this.valid += 1) {
      this.tops[this.valid] = this.tops[this.valid - 1] + this.sizes[this.valid - 1];
    }
    return this.tops[i];
  }

  get total() {
    return this.top(this.length);
  }

  /** Index of the block at a distance from the beginning: the first one above it, the last one below all. */
  at(y) {
    this.top(this.length);
    let low = 0;
    let high = Math.max(0, this.length - 1);
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.tops[middle] <= y) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** Index of the block with this key, or undefined. */
  find(key) {
    return this.index.get(key);
  }

  #resize(i, height) {
    if (this.sizes[i] === height) return false;
    this.sizes[i] = height;
    this.valid = Math.min(this.valid, i + 1);
    return true;
  }

  #reserve(length) {
    if (length <= this.sizes.length) return;
    const room = Math.max(length, this.sizes.length * 2);
    const sizes = new Float64Array(room);
    sizes.set(this.sizes);
    const tops = new Float64Array(room + 1);
    tops.set(this.tops);
    this.sizes = sizes;
    this.tops = tops;
  }
}
