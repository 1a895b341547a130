/**
 * What can go wrong on a device, and who hears of it.
 *
 * Errors carry the name of the Python class that they become. WebGPU reports most of them later: all work runs in error
 * scopes, which each read closes, and what a scope holds is given to the reads that are waiting, or thrown by the next call.
 */

/** @type {GPUErrorFilter[]} */
const FILTERS = ["validation", "out-of-memory", "internal"];

/**
 * An error that Python raises as its class of that name.
 * @param {"BackendError" | "DeviceLostError" | "WebGPUUnavailableError"} name
 * @param {string} message
 */
export function failure(name, message) {
  const error = new Error(message);
  error.name = name;
  return error;
}

/**
 * @param {Record<string, any>} descriptor
 * @param {string} field
 */
export function need(descriptor, field) {
  if (descriptor[field] === undefined) throw failure("BackendError", `descriptor field '${field}' is missing`);
  return descriptor[field];
}

export class Faults {
  /** why the device was lost; "" while it lives */
  lost = "";
  /** @type {Error | null} */
  #pending = null;
  /** @type {Set<Promise<void>>} error scopes that are not answered yet */
  #scopes = new Set();
  /** @type {(() => string) | null} label of the scopes that are open for submits */
  #covered = null;
  /** @type {Set<(error: Error) => void>} */
  #waiting = new Set();
  /** @type {((reason: string) => void)[]} */
  #handlers = [];

  /** @param {GPUDevice} device */
  constructor(device) {
    this.device = device;
    device.addEventListener("uncapturederror", ({ error }) => this.report(failure("BackendError", error.message)));
    device.lost.then(({ reason, message }) => this.lose(message ? `${reason}: ${message}` : String(reason)));
  }

  /** Called first by everything that Python calls: throws what happened since the last call. */
  check() {
    if (this.lost) throw this.lostError();
    const error = this.#pending;
    this.#pending = null;
    if (error) throw error;
  }

  /**
   * Run work in error scopes of its own. The label is made only if there is an error.
   * @template T
   * @param {() => string} label
   * @param {() => T} work
   * @returns {T}
   */
  scoped(label, work) {
    for (const filter of FILTERS) this.device.pushErrorScope(filter);
    try {
      return work();
    } finally {
      for (let i = 0; i < FILTERS.length; i += 1) this.#popScope(label);
    }
  }

  /**
   * From now on work is covered by error scopes, until `uncover`: one set for many submits, since each costs three
   * messages to the browser's GPU process.
   * @param {() => () => string} labels called if the scopes are opened; makes the text before an error in them
   */
  cover(labels) {
    if (this.#covered) return;
    for (const filter of FILTERS) this.device.pushErrorScope(filter);
    this.#covered = labels();
  }

  /** Close the scopes of `cover`: `scopesAnswered` waits for them. */
  uncover() {
    const label = this.#covered;
    if (!label) return;
    this.#covered = null;
    for (let i = 0; i < FILTERS.length; i += 1) this.#popScope(label);
  }

  /** @param {() => string} label */
  #popScope(label) {
    const scope = this.device.popErrorScope().then(
      (error) => { if (error) this.report(failure("BackendError", `${label()}: ${error.message}`)); },
      () => undefined, // the device is lost, which is reported on its own
    );
    this.#scopes.add(scope);
    scope.then(() => this.#scopes.delete(scope));
  }

  /** Fulfilled when all closed error scopes are answered. */
  async scopesAnswered() {
    await Promise.all(this.#scopes);
  }

  /**
   * Hand an error to all reads that wait (any of them may hold a wrong result), or to the next call.
   * @param {Error} error
   */
  report(error) {
    if (this.#waiting.size) for (const reject of [...this.#waiting]) reject(error);
    else this.#pending ??= error;
  }

  /** @param {(error: Error) => void} reject */
  addWaiting(reject) {
    this.#waiting.add(reject);
  }

  /**
   * @param {(error: Error) => void} reject
   * @returns {boolean} whether it was still waiting
   */
  removeWaiting(reject) {
    return this.#waiting.delete(reject);
  }

  lostError() {
    return failure("DeviceLostError", `the GPU device was lost (${this.lost}); request a new backend`);
  }

  /** @param {string} reason */
  lose(reason) {
    if (this.lost) return;
    this.lost = reason;
    for (const reject of [...this.#waiting]) reject(this.lostError());
    for (const handler of this.#handlers) handler(reason);
  }

  /** @param {(reason: string) => void} handler called once if the device is lost */
  onLost(handler) {
    this.#handlers.push(handler);
  }

  /** From now on a loss is the owner's own doing. */
  forgetHandlers() {
    this.#handlers = [];
  }
}
