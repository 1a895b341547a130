/** The commands of one submit. */

/** @typedef {import("./bridge_plans.mjs").Plan} Plan */
/** @typedef {import("./bridge_plans.mjs").Window} Window */

/** @typedef {{ pipelines: GPUComputePipeline[], groups: GPUBindGroup[], grids: number[] }} Dispatches grids: three numbers for each */
/** @typedef {[src: GPUBuffer, srcByte: number, dst: GPUBuffer, dstByte: number, count: number]} Copy */
/** @typedef {{ dispatches?: Dispatches, clear?: Window, copy?: Copy }} Part of a program: one of these */

const DISPATCHES_PER_SUBMIT = 512; // a longer submit is cut: no single piece may run into a driver's time limit

/** Consecutive dispatches share a compute pass. */
export class Encoder {
  /** @type {GPUCommandEncoder | null} */
  #encoder = null;
  /** @type {GPUComputePassEncoder | null} */
  #pass = null;
  /** @type {GPUComputePipeline | null} of the pass */
  #pipeline = null;
  #dispatches = 0;

  /**
   * @param {GPUDevice} device
   * @param {{ submits: number, dispatches: number }} counts what is to be counted up
   */
  constructor(device, counts) {
    this.device = device;
    this.counts = counts;
  }

  /**
   * @param {Plan} plan
   * @param {GPUBindGroup[]} groups
   */
  run(plan, groups) {
    for (let i = 0; i < groups.length; i += 1) {
      const { pipeline, grid } = plan.steps[i];
      if (!pipeline.pipeline) throw pipeline.error;
      this.#dispatch(pipeline.pipeline, groups[i], grid[0], grid[1], grid[2]);
    }
  }

  /** @param {Part[]} parts of a program */
  replay(parts) {
    for (const { dispatches, clear, copy } of parts) {
      if (dispatches) {
        const { pipelines, groups, grids } = dispatches;
        for (let i = 0, at = 0; i < groups.length; i += 1, at += 3) {
          this.#dispatch(pipelines[i], groups[i], grids[at], grids[at + 1], grids[at + 2]);
        }
      }
      if (clear) this.clear(clear);
      if (copy) this.copy(...copy);
    }
  }

  /**
   * @param {GPUComputePipeline} pipeline
   * @param {GPUBindGroup} group
   * @param {number} x @param {number} y @param {number} z workgroups
   */
  #dispatch(pipeline, group, x, y, z) {
    const pass = (this.#pass ??= (this.#encoder ??= this.device.createCommandEncoder()).beginComputePass());
    if (pipeline !== this.#pipeline) {
      pass.setPipeline(pipeline);
      this.#pipeline = pipeline;
    }
    pass.setBindGroup(0, group);
    pass.dispatchWorkgroups(x, y, z);
    this.#dispatches += 1;
    if (this.#dispatches >= DISPATCHES_PER_SUBMIT) this.submit();
  }

  /**
   * @param {GPUBuffer} src
   * @param {number} srcByte
   * @param {GPUBuffer} dst
   * @param {number} dstByte
   * @param {number} count bytes
   */
  copy(src, srcByte, dst, dstByte, count) {
    this.#outsidePass().copyBufferToBuffer(src, srcByte, dst, dstByte, count);
  }

  /** @param {Window} window */
  clear({ buffer, offset, nbytes }) {
    this.#outsidePass().clearBuffer(buffer, offset, nbytes);
  }

  #outsidePass() {
    this.#pass?.end();
    this.#pass = null;
    this.#pipeline = null;
    return (this.#encoder ??= this.device.createCommandEncoder());
  }

  submit() {
    if (!this.#encoder) return;
    this.device.queue.submit([this.#outsidePass().finish()]);
    this.#encoder = null;
    this.counts.submits += 1;
    this.counts.dispatches += this.#dispatches;
    this.#dispatches = 0;
  }
}
