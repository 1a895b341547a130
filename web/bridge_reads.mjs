/**
 * Reading back: several reads may be in flight, each with a ticket that its caller chose. A read ends in three steps, so
 * that nothing is ever written to Python's memory but from a call of Python: copy out and map; tell; collect.
 */

import { failure } from "./bridge_faults.mjs";

/** @typedef {import("./bridge_faults.mjs").Faults} Faults */

const POOLED_BYTES = 1 << 20; // larger staging buffers are not kept
const POOLED = 4;
const LOSS_REPORT_MS = 250; // how long a failed read waits for the news that the device is lost

export class Reads {
  /** @type {GPUBuffer[]} */
  #pool = [];
  /** @type {Map<number, { buffer: GPUBuffer, nbytes: number } | null>} null: asked for, not there yet */
  #tickets = new Map();

  /**
   * @param {GPUDevice} device
   * @param {Faults} faults
   */
  constructor(device, faults) {
    this.device = device;
    this.faults = faults;
  }

  /** number of reads that were neither collected nor given up */
  get openReads() {
    return this.#tickets.size;
  }

  /**
   * A promise for a ticket, and the function that starts it: `start` is called in the order of the queue.
   * @param {number} ticket
   * @param {(buffer: (nbytes: number) => GPUBuffer) => { buffer: GPUBuffer, nbytes: number }} copyOut
   * @returns {{ done: Promise<void>, start: () => void }}
   */
  open(ticket, copyOut) {
    this.#tickets.set(ticket, null);
    let start = () => {};
    /** @type {Promise<void>} */
    const done = new Promise((resolve, reject) => {
      /** @param {Error} error */
      const fail = (error) => {
        this.faults.removeWaiting(fail);
        this.#tickets.delete(ticket);
        reject(error);
      };
      this.faults.addWaiting(fail);
      start = () => {
        const { buffer, nbytes } = copyOut((size) => this.#take(size));
        this.faults.uncover();
        this.#map(buffer).then(
          () => {
            const wanted = this.faults.removeWaiting(fail) && this.#tickets.has(ticket);
            if (wanted) this.#tickets.set(ticket, { buffer, nbytes });
            else this.#give(buffer);
            resolve();
          },
          (error) => {
            buffer.destroy();
            fail(error);
          },
        );
      };
    });
    done.catch(() => {}); // whoever gave the read up does not wait for it: its failure is no "unhandled rejection"
    return { done, start };
  }

  /**
   * Wait for the bytes and for the error scopes of all earlier work.
   * @param {GPUBuffer} buffer
   */
  async #map(buffer) {
    const mapped = buffer.mapAsync(GPUMapMode.READ).then(() => null, (error) => error);
    const scopes = this.faults.scopesAnswered();
    const error = await mapped;
    await scopes;
    if (!error) return;
    await Promise.race([this.device.lost, new Promise((resolve) => setTimeout(resolve, LOSS_REPORT_MS))]);
    throw this.faults.lost ? this.faults.lostError() : failure("BackendError", `reading back failed: ${String(error)}`);
  }

  /**
   * Copy the bytes of a fulfilled read to an address.
   * @param {number} ticket
   * @param {Uint8Array} memory
   * @param {number} address
   */
  collect(ticket, memory, address) {
    const found = this.#tickets.get(ticket);
    if (!found) throw this.faults.lost ? this.faults.lostError() : failure("BackendError", `read ${ticket} has no bytes`);
    memory.set(new Uint8Array(found.buffer.getMappedRange(0, found.nbytes)), address >>> 0);
    this.release(ticket);
  }

  /** @param {number} ticket a read that nobody wants any more */
  release(ticket) {
    const found = this.#tickets.get(ticket);
    this.#tickets.delete(ticket);
    if (found) this.#give(found.buffer);
  }

  /** @param {number} nbytes */
  #take(nbytes) {
    const found = this.#pool.findIndex((buffer) => buffer.size >= nbytes);
    if (found >= 0) return this.#pool.splice(found, 1)[0];
    const usage = GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST;
    return this.device.createBuffer({ label: "read", size: nbytes > POOLED_BYTES ? nbytes : powerOfTwo(nbytes), usage });
  }

  /** @param {GPUBuffer} buffer */
  #give(buffer) {
    buffer.unmap();
    if (buffer.size <= POOLED_BYTES && this.#pool.length < POOLED) this.#pool.push(buffer);
    else buffer.destroy();
  }
}

/** @param {number} nbytes */
export function powerOfTwo(nbytes) {
  return 2 ** Math.ceil(Math.log2(Math.max(nbytes, 1024)));
}
