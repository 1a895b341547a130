/** The commands of one submit. */

/** @typedef {import("./bridge_plans.mjs").Plan} Plan */
/** @typedef {import("./bridge_plans.mjs").Window} Window */

const DISPATCHES_PER_SUBMIT = 512; // a longer submit is cut: no single piece may run into a driver's time limit

/** Consecutive dispatches share a compute pass. */
export class Encoder {
  /** @type {GPUCommandEncoder | null} */
  #encoder = null;
  /** @type {GPUComputePassEncoder | null} */
  #pass = null;
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
      this.#pass ??= (this.#encoder ??= this.device.createCommandEncoder()).beginComputePass();
      this.#pass.setPipeline(pipeline.pipeline);
      this.#pass.setBindGroup(0, groups[i]);
      this.#pass.dispatchWorkgroups(grid[0], grid[1], grid[2]);
      this.#dispatches += 1;
      if (this.#dispatches >= DISPATCHES_PER_SUBMIT) this.submit();
    }
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
