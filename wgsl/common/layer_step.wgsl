// Shapes of one decoding step of a layer, where parts lie in W (layout.MoeLayout), and what its kernels leave each other.

struct Step {
    b: u32, d: u32, taps: u32, q: u32, h: u32, e: u32, k: u32,
    experts: u32, stride: u32, b1: u32, w2: u32, b2: u32, // w1 is at 0 of an expert
    record: u32, // values that layer_step_rows leaves per row: m, a, n (wide each), gates (k), experts (k), logits (E)
    wide: u32, // D, and
    deep: u32, // H, to the next multiple of 4: hidden is (B, k+1, deep), the shared expert first
}

fn expert_at(expert: u32) -> u32 { return shape.experts + expert * shape.stride; } // 0 is the shared expert
fn m_at(row: u32) -> u32 { return row * shape.record; }
fn a_at(row: u32) -> u32 { return m_at(row) + shape.wide; }
fn n_at(row: u32) -> u32 { return a_at(row) + shape.wide; } // what the convolution keeps of this row
fn gates_at(row: u32) -> u32 { return n_at(row) + shape.wide; }
fn chosen_at(row: u32) -> u32 { return gates_at(row) + shape.k; } // numbers of experts, as floats
fn logits_at(row: u32) -> u32 { return chosen_at(row) + shape.k; }
