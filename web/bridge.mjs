/**
 * The bridge between Python and `navigator.gpu`: buffers, kernels and plans behind integer ids, and lists of int32 records
 * that it replays with cached pipelines and bind groups. It knows no operation, no shape and no model.
 *
 * Python passes addresses in its own memory. That memory moves when it grows, so every call takes what it needs from
 * `wasm.HEAPU8` afresh and keeps no view of it. The records are described in `backend/device.py`.
 */

import { Encoder } from "./bridge_encoder.mjs";
import { Faults, failure, need } from "./bridge_faults.mjs";
import { Plans, forget } from "./bridge_plans.mjs";
import { Programs } from "./bridge_programs.mjs";
import { Reads, powerOfTwo } from "./bridge_reads.mjs";
import { walk } from "./bridge_records.mjs";

/** @typedef {import("./bridge_plans.mjs").Plan} Plan */
/** @typedef {import("./bridge_plans.mjs").Window} Window */
/** @typedef {{ HEAPU8: Uint8Array }} Wasm Pyodide's module: `HEAPU8` is replaced when the memory grows */

/**
 * Open a device with the adapter's largest buffers.
 * @param {Wasm} wasm
 * @param {string} optionsText JSON: `{ "limits": [names to request in full], "powerPreference": ... }`
 * @returns {Promise<Bridge>}
 */
export async function requestBridge(wasm, optionsText) {
  const options = JSON.parse(optionsText);
  const gpu = globalThis.navigator?.gpu;
  const powerPreference = options.powerPreference;
  const adapter = gpu ? await gpu.requestAdapter({ powerPreference }).catch(() => null) : null;
  if (!adapter) throw failure("WebGPUUnavailableError", "WebGPU not available: no adapter (or page not secure)");
  /** @type {Record<string, number>} */
  const limits = {};
  for (const name of need(options, "limits")) limits[name] = Number(/** @type {any} */ (adapter.limits)[name]);
  try {
    const device = await adapter.requestDevice({ label: "evermind_web", requiredLimits: limits });
    return new Bridge(wasm, adapter, device, limits);
  } catch (error) {
    throw failure("WebGPUUnavailableError", `WebGPU not available: the adapter gave no device (${String(error)})`);
  }
}

export class Bridge {
  #disposed = false;
  /** @type {(() => void)[]} work that waits until all pipelines are compiled, in order */
  #jobs = [];
  /** @type {Map<number, Window>} */
  #windows = new Map();
  /** @type {GPUBuffer | null} */
  #upload = null;
  /** @type {Set<Plan>} what ran since the last read, for error texts */
  #ran = new Set();
  #counts = { submits: 0, dispatches: 0, uploads: 0, buffers: 0, buffer_bytes: 0 };

  /**
   * @param {Wasm} wasm
   * @param {GPUAdapter} adapter
   * @param {GPUDevice} device
   * @param {Record<string, number>} limits
   */
  constructor(wasm, adapter, device, limits) {
    this.wasm = wasm;
    this.device = device;
    const { vendor, architecture, device: model, description } = adapter.info;
    this.adapterName = [vendor, architecture, model, description].filter(Boolean).join(" ") || "unknown WebGPU adapter";
    this.limitsText = JSON.stringify(limits);
    this.faults = new Faults(device);
    this.plans = new Plans(device, (nbytes, label) => this.#newBuffer(nbytes, label), () => this.#drain());
    this.windowOf = (/** @type {number} */ id) => this.#window(id);
    this.programs = new Programs(this.plans, this.windowOf);
    this.reads = new Reads(device, this.faults);
  }

  /** why the device was lost; "" while it lives */
  get lost() {
    return this.faults.lost;
  }

  // ---- kernels, plans, buffers ----------------------------------------------------------------------------------

  /**
   * @param {string} name
   * @param {string} code WGSL
   * @param {string} bindingsText JSON list of "read", "read_write", "uniform"
   */
  defineKernel(name, code, bindingsText) {
    this.faults.check();
    this.plans.defineKernel(name, code, bindingsText);
  }

  /**
   * @param {number} id
   * @param {string} text JSON, see `backend/kernels/__init__.py`
   */
  definePlan(id, text) {
    this.faults.check();
    this.plans.definePlan(id, text);
  }

  /**
   * Store records for a replay.
   * @param {number} id
   * @param {number} address of int32 words
   * @param {number} words number of them
   */
  defineProgram(id, address, words) {
    this.faults.check();
    const memory = /** @type {ArrayBuffer} */ (this.wasm.HEAPU8.buffer);
    this.programs.define(id, new Int32Array(memory, address >>> 0, words).slice());
  }

  /**
   * @param {number} id
   * @param {number} nbytes a multiple of 4
   */
  createBuffer(id, nbytes) {
    this.faults.check();
    const buffer = this.#newBuffer(nbytes, `buffer ${id}`);
    this.#windows.set(id, { buffer, offset: 0, nbytes, owns: true, entries: new Set(), programs: new Set() });
    this.#counts.buffers += 1;
    this.#counts.buffer_bytes += nbytes;
  }

  /**
   * @param {number} id
   * @param {number} parent
   * @param {number} offset bytes, a multiple of 256
   * @param {number} nbytes
   */
  createView(id, parent, offset, nbytes) {
    this.faults.check();
    const { buffer, offset: start } = this.#window(parent);
    const window = { buffer, offset: start + offset, nbytes, owns: false, entries: new Set(), programs: new Set() };
    this.#windows.set(id, window);
  }

  /**
   * Upload from Python's memory, after all that was submitted before.
   * @param {number} id
   * @param {number} address
   * @param {number} nbytes
   */
  write(id, address, nbytes) {
    this.faults.check();
    const { buffer, offset } = this.#window(id);
    const data = this.#bytes(address, nbytes);
    this.#enqueue(() => this.device.queue.writeBuffer(buffer, offset, data));
  }

  /**
   * @param {number} nbytes
   * @param {string} label
   */
  #newBuffer(nbytes, label) {
    const usage = GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
    const create = () => this.device.createBuffer({ label, size: nbytes, usage });
    return this.faults.scoped(() => `${label} of ${nbytes} bytes`, create);
  }

  /** @param {number} id */
  #window(id) {
    const window = this.#windows.get(id);
    if (!window) throw failure("BackendError", `buffer ${id} was freed or never made`);
    return window;
  }

  /** @param {number} id */
  #destroy(id) {
    const window = this.#window(id);
    this.#windows.delete(id);
    for (const entry of window.entries) forget(entry);
    for (const program of window.programs) this.programs.drop(program);
    if (!window.owns) return;
    window.buffer.destroy();
    this.#counts.buffers -= 1;
    this.#counts.buffer_bytes -= window.nbytes;
  }

  /**
   * Bytes of Python's memory: a view where the work runs within this call, a copy where it must wait.
   * @param {number} address
   * @param {number} nbytes
   */
  #bytes(address, nbytes) {
    const memory = /** @type {ArrayBuffer} */ (this.wasm.HEAPU8.buffer);
    const view = new Uint8Array(memory, address >>> 0, nbytes);
    return this.#mustWait() ? view.slice() : view;
  }

  // ---- work -----------------------------------------------------------------------------------------------------

  /**
   * Replay records.
   * @param {number} recordsAddress
   * @param {number} words number of int32 words
   * @param {number} stagingAddress
   * @param {number} stagingBytes
   */
  submit(recordsAddress, words, stagingAddress, stagingBytes) {
    this.faults.check();
    const bytes = this.#bytes(recordsAddress, 4 * words);
    const records = new Int32Array(bytes.buffer, bytes.byteOffset, words);
    const staging = this.#bytes(stagingAddress, stagingBytes);
    this.#enqueue(() => this.#replay(records, staging));
  }

  /**
   * @param {Int32Array} words
   * @param {Uint8Array<ArrayBuffer>} staging
   */
  #replay(words, staging) {
    const work = new Encoder(this.device, this.#counts);
    /** @type {GPUBuffer | null} */
    let area = null;
    /** @type {number[]} */
    const doomed = [];
    /** @type {number[]} */
    const dropped = [];
    const sink = {
      /** @param {number} number @param {Int32Array} ids */
      run: (number, ids) => {
        const plan = this.plans.plan(number);
        this.#ran.add(plan);
        work.run(plan, this.plans.groups(plan, ids, this.windowOf));
      },
      /** @param {Window} window */
      clear: (window) => work.clear(window),
      /** @type {import("./bridge_records.mjs").Sink["copy"]} */
      copy: (...copy) => work.copy(...copy),
    };
    walk(words, this.windowOf, sink, {
      upload: (dst, at, count, first) => {
        if (first) {
          // Nothing of this submit comes before it: straight to its place, after all that was submitted.
          this.#counts.uploads += 1;
          this.device.queue.writeBuffer(dst.buffer, dst.offset, staging, at, count);
        } else {
          area ??= this.#stage(staging);
          work.copy(area, at, dst.buffer, dst.offset, count);
        }
      },
      replay: (number) => {
        const { parts, plans } = this.programs.get(number);
        for (const plan of plans) this.#ran.add(plan);
        work.replay(parts);
      },
      destroy: (id) => doomed.push(id),
      drop: (number) => dropped.push(number),
    });
    work.submit();
    for (const number of dropped) this.programs.drop(number);
    for (const id of doomed) this.#destroy(id);
  }

  /**
   * One upload area suffices: the queue writes it after the copies of earlier submits out of it.
   * @param {Uint8Array<ArrayBuffer>} staging
   */
  #stage(staging) {
    if (!this.#upload || this.#upload.size < staging.byteLength) {
      this.#upload?.destroy();
      const usage = GPUBufferUsage.COPY_DST | GPUBufferUsage.COPY_SRC;
      this.#upload = this.device.createBuffer({ label: "upload", size: powerOfTwo(staging.byteLength), usage });
    }
    this.#counts.uploads += 1;
    this.device.queue.writeBuffer(this.#upload, 0, staging);
    return this.#upload;
  }

  /**
   * Run work now, or after the work that waits for pipelines.
   * @param {() => void} work
   */
  #enqueue(work) {
    if (!this.#mustWait()) {
      this.faults.cover(this.#label);
      work();
      return;
    }
    this.#jobs.push(() => {
      this.faults.cover(this.#label);
      try {
        work();
      } catch (error) {
        this.faults.report(/** @type {Error} */ (error));
      }
    });
  }

  /** What an error's text begins with: the kernels that ran since the last read. */
  #label = () => {
    const ran = (this.#ran = new Set());
    return () => {
      const names = new Set([...ran].flatMap((plan) => plan.steps.map((step) => step.kernel.name)));
      return `submit of ${[...names].join(", ") || "copies"}`;
    };
  };

  #mustWait() {
    return this.plans.compiling > 0 || this.#jobs.length > 0;
  }

  #drain() {
    while (!this.plans.compiling && this.#jobs.length && !this.lost) this.#jobs.shift()?.();
  }

  // ---- reading --------------------------------------------------------------------------------------------------

  /**
   * Copy buffers out. When the promise is fulfilled, `collect` takes the bytes; `release` gives them up.
   * @param {number} ticket chosen by the caller
   * @param {number} idsAddress int32 ids of the buffers, whose bytes are laid one after another
   * @param {number} count
   * @returns {Promise<void>}
   */
  read(ticket, idsAddress, count) {
    this.faults.check();
    const memory = /** @type {ArrayBuffer} */ (this.wasm.HEAPU8.buffer);
    const windows = Array.from(new Int32Array(memory, idsAddress >>> 0, count), (id) => this.#window(id));
    const nbytes = windows.reduce((sum, window) => sum + window.nbytes, 0);
    const { done, start } = this.reads.open(ticket, (take) => {
      const buffer = take(nbytes);
      const work = new Encoder(this.device, this.#counts);
      let at = 0;
      for (const window of windows) {
        work.copy(window.buffer, window.offset, buffer, at, window.nbytes);
        at += window.nbytes;
      }
      work.submit();
      return { buffer, nbytes };
    });
    this.#enqueue(start);
    return done;
  }

  /**
   * Copy the bytes of a fulfilled read into Python's memory.
   * @param {number} ticket
   * @param {number} address
   */
  collect(ticket, address) {
    this.reads.collect(ticket, this.wasm.HEAPU8, address);
  }

  /** @param {number} ticket a read that nobody wants any more */
  release(ticket) {
    this.reads.release(ticket);
  }

  // ---- life -----------------------------------------------------------------------------------------------------

  /** @param {(reason: string) => void} handler called once if the device is lost by itself */
  onLost(handler) {
    this.faults.onLost(handler);
  }

  /** @returns {string} JSON of counters, see `backend/device.py` */
  stats() {
    const { pipelines, bindGroups, scratchBytes } = this.plans;
    const more = { pipelines, bind_groups: bindGroups, scratch_bytes: scratchBytes, open_reads: this.reads.openReads };
    return JSON.stringify({ ...this.#counts, ...more });
  }

  dispose() {
    if (this.#disposed) return;
    this.#disposed = true;
    this.faults.forgetHandlers();
    this.faults.lose("disposed");
    this.device.destroy(); // and with it all its buffers
    this.#jobs = [];
    this.#windows.clear();
    Object.assign(this.#counts, { buffers: 0, buffer_bytes: 0 });
  }
}
