/**
 * Requests of the page: to the gateway, and to the machines that it leads to, once it has named some.
 *
 * What is for machines comes as a part of its own: most gateways lead to none.
 */

/**
 * Creates it.
 * @param {import("../state/store.js").Rpc & {wake: () => void}} home - the gateway's own.
 * @param {() => Promise<import("./fleet.js").Fleet>} load - called once there are machines; where it fails, again with what
 *   the gateway tells next.
 */
export function createReach(home, load) {
  /** @type {Promise<import("./fleet.js").Fleet>|null} */
  let fleet = null;
  let tell = () => {};
  /** Until then, what a name with a slash stands for is not known. */
  const told = new Promise((resolve) => (tell = /** @type {any} */ (resolve)));

  /** Notes which machines the gateway leads to. @param {{name: string}[]} [machines] */
  const follow = (machines = []) => {
    if (machines.length > 0) fleet ??= load();
    fleet?.then((it) => it.follow(machines), () => (fleet = null));
    tell();
  };

  /** @type {import("../state/store.js").Rpc["request"]} */
  const request = async (method, params = {}, options) => {
    const { sessionId, agentType } = /** @type {any} */ (params);
    if (`${sessionId ?? agentType}`.includes("/")) await told;
    if (fleet !== null) return (await fleet).request(method, params, options);
    return home.request(method, params, options);
  };
  const wake = () => {
    home.wake();
    void fleet?.then((it) => it.wake(), () => {});
  };
  return {
    get state() {
      return home.state;
    },
    request,
    follow,
    wake,
  };
}
