;; Matrix products, and a few passes, for float32 arrays that lie in the memory of another module: Pyodide's, where
;; NumPy has no BLAS and makes a pass for each operation.
;; Assembled by simd/assemble.mjs, called by evermind_web/backend/simd.py, tested in tests/browser/test_simd.py.
;;
;; Sizes are in elements, strides in bytes. Arrays are given as the addresses of NumPy's array objects (Python's `id`),
;; which spares the caller 3 µs an array; the address of the data is read from there, see `data`. Every element of a product goes through the same additions
;; in the same order, wherever it stands in the matrix: equal rows give equal results, and a repeat the same bits.
(module
  (import "env" "memory" (memory 0))

  ;; $DEPTH deep slices of A ($ROWS high) and B ($COLS wide) are copied so that the tile reads them in a straight line.
  (global $DEPTH i32 (i32.const 256))
  (global $ROWS i32 (i32.const 64))
  (global $COLS i32 (i32.const 512))
  ;; Where one tile and the copies lie: 128 + 64*256*4 + 256*512*4 bytes; see WORKSPACE in simd.py.
  (global $tile (mut i32) (i32.const 0))
  (global $packed_a (mut i32) (i32.const 0))
  (global $packed_b (mut i32) (i32.const 0))

  (func (export "use_workspace") (param $at i32)
    (global.set $tile (local.get $at))
    (global.set $packed_a (i32.add (local.get $at) (i32.const 128)))
    (global.set $packed_b (i32.add (global.get $packed_a) (i32.const 65536))))

  ;; Where the data of an array object lie: `char *data` follows the two words of every Python object. The caller
  ;; compares this with NumPy's own answer before it uses anything else.
  (func $data (export "data") (param $array i32) (result i32)
    (i32.load offset=8 (local.get $array)))

  (func $min (param $x i32) (param $y i32) (result i32)
    (select (local.get $x) (local.get $y) (i32.lt_s (local.get $x) (local.get $y))))

  ;; to[k*step .. +16] = four lanes of `from` at depth k, for k < depth. Lanes that do not exist repeat the first one;
  ;; what is computed of them is thrown away.
  (func $pack (param $from i32) (param $lane i32) (param $deep i32) (param $lanes i32) (param $depth i32)
              (param $to i32) (param $step i32)
    (local $p1 i32) (local $p2 i32) (local $p3 i32) (local $r0 v128) (local $r1 v128) (local $r2 v128) (local $r3 v128)
    (local $t0 v128) (local $t1 v128)
    (if (i32.lt_s (local.get $lanes) (i32.const 1)) (then (return)))
    (if (i32.and (i32.eq (local.get $lane) (i32.const 4)) (i32.gt_s (local.get $lanes) (i32.const 3)))
      (then  ;; lanes are neighbours: copy
        (loop $copy
          (v128.store (local.get $to) (v128.load (local.get $from)))
          (local.set $to (i32.add (local.get $to) (local.get $step)))
          (local.set $from (i32.add (local.get $from) (local.get $deep)))
          (br_if $copy (local.tee $depth (i32.sub (local.get $depth) (i32.const 1)))))
        (return)))
    (local.set $p1 (i32.add (local.get $from) (select (local.get $lane) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 1)))))
    (local.set $p2 (i32.add (local.get $from) (select (i32.mul (local.get $lane) (i32.const 2)) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 2)))))
    (local.set $p3 (i32.add (local.get $from) (select (i32.mul (local.get $lane) (i32.const 3)) (i32.const 0)
      (i32.gt_s (local.get $lanes) (i32.const 3)))))
    (if (i32.eq (local.get $deep) (i32.const 4))
      (then  ;; depths are neighbours: transpose four by four
        (block $done
          (loop $transpose
            (br_if $done (i32.lt_s (local.get $depth) (i32.const 4)))
            (local.set $r0 (v128.load (local.get $from)))
            (local.set $r1 (v128.load (local.get $p1)))
            (local.set $r2 (v128.load (local.get $p2)))
            (local.set $r3 (v128.load (local.get $p3)))
            (local.set $t0 (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $r0) (local.get $r1)))
            (local.set $t1 (i8x16.shuffle 0 1 2 3 16 17 18 19 4 5 6 7 20 21 22 23 (local.get $r2) (local.get $r3)))
            (v128.store (local.get $to)
              (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $t0) (local.get $t1)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $t0) (local.get $t1)))
            (local.set $t0 (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $r0) (local.get $r1)))
            (local.set $t1 (i8x16.shuffle 8 9 10 11 24 25 26 27 12 13 14 15 28 29 30 31 (local.get $r2) (local.get $r3)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 0 1 2 3 4 5 6 7 16 17 18 19 20 21 22 23 (local.get $t0) (local.get $t1)))
            (v128.store (local.tee $to (i32.add (local.get $to) (local.get $step)))
              (i8x16.shuffle 8 9 10 11 12 13 14 15 24 25 26 27 28 29 30 31 (local.get $t0) (local.get $t1)))
            (local.set $to (i32.add (local.get $to) (local.get $step)))
            (local.set $from (i32.add (local.get $from) (i32.const 16)))
            (local.set $p1 (i32.add (local.get $p1) (i32.const 16)))
            (local.set $p2 (i32.add (local.get $p2) (i32.const 16)))
            (local.set $p3 (i32.add (local.get $p3) (i32.const 16)))
            (local.set $depth (i32.sub (local.get $depth) (i32.const 4)))
            (br $transpose)))))
    (block $end
      (loop $one
        (br_if $end (i32.eqz (local.get $depth)))
        (f32.store (local.get $to) (f32.load (local.get $from)))
        (f32.store offset=4 (local.get $to) (f32.load (local.get $p1)))
        (f32.store offset=8 (local.get $to) (f32.load (local.get $p2)))
        (f32.store offset=12 (local.get $to) (f32.load (local.get $p3)))
        (local.set $to (i32.add (local.get $to) (local.get $step)))
        (local.set $from (i32.add (local.get $from) (local.get $deep)))
        (local.set $p1 (i32.add (local.get $p1) (local.get $deep)))
        (local.set $p2 (i32.add (local.get $p2) (local.get $deep)))
        (local.set $p3 (i32.add (local.get $p3) (local.get $deep)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
        (br $one))))

  ;; C (4,8) = or += A (4,depth) B (depth,8) of packed slices; a row of C is `row` bytes after the one before.
  (func $multiply_tile (param $depth i32) (param $a i32) (param $b i32) (param $c i32) (param $row i32) (param $add i32)
    (local $b0 v128) (local $b1 v128) (local $av v128)
    (local $c00 v128) (local $c01 v128) (local $c10 v128) (local $c11 v128)
    (local $c20 v128) (local $c21 v128) (local $c30 v128) (local $c31 v128)
    (local $q1 i32) (local $q2 i32) (local $q3 i32)
    (local.set $q1 (i32.add (local.get $c) (local.get $row)))
    (local.set $q2 (i32.add (local.get $q1) (local.get $row)))
    (local.set $q3 (i32.add (local.get $q2) (local.get $row)))
    (block $tail
      (loop $four
        (br_if $tail (i32.lt_s (local.get $depth) (i32.const 4)))
        ;;#step 0
        ;;#step 1
        ;;#step 2
        ;;#step 3
        (local.set $a (i32.add (local.get $a) (i32.const 64)))
        (local.set $b (i32.add (local.get $b) (i32.const 128)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 4)))
        (br $four)))
    (block $end
      (loop $one
        (br_if $end (i32.eqz (local.get $depth)))
        ;;#step 0
        (local.set $a (i32.add (local.get $a) (i32.const 16)))
        (local.set $b (i32.add (local.get $b) (i32.const 32)))
        (local.set $depth (i32.sub (local.get $depth) (i32.const 1)))
        (br $one)))
    (if (local.get $add)
      (then
        (local.set $c00 (f32x4.add (local.get $c00) (v128.load (local.get $c))))
        (local.set $c01 (f32x4.add (local.get $c01) (v128.load offset=16 (local.get $c))))
        (local.set $c10 (f32x4.add (local.get $c10) (v128.load (local.get $q1))))
        (local.set $c11 (f32x4.add (local.get $c11) (v128.load offset=16 (local.get $q1))))
        (local.set $c20 (f32x4.add (local.get $c20) (v128.load (local.get $q2))))
        (local.set $c21 (f32x4.add (local.get $c21) (v128.load offset=16 (local.get $q2))))
        (local.set $c30 (f32x4.add (local.get $c30) (v128.load (local.get $q3))))
        (local.set $c31 (f32x4.add (local.get $c31) (v128.load offset=16 (local.get $q3))))))
    (v128.store (local.get $c) (local.get $c00))  (v128.store offset=16 (local.get $c) (local.get $c01))
    (v128.store (local.get $q1) (local.get $c10)) (v128.store offset=16 (local.get $q1) (local.get $c11))
    (v128.store (local.get $q2) (local.get $c20)) (v128.store offset=16 (local.get $q2) (local.get $c21))
    (v128.store (local.get $q3) (local.get $c30)) (v128.store offset=16 (local.get $q3) (local.get $c31)))

  ;; The same, bit for bit, where C ends inside the tile: computed beside it, then copied.
  (func $multiply_edge (param $depth i32) (param $a i32) (param $b i32) (param $c i32) (param $row i32) (param $add i32)
                       (param $rows i32) (param $cols i32)
    (local $from i32) (local $to i32) (local $i i32) (local $j i32)
    (call $multiply_tile (local.get $depth) (local.get $a) (local.get $b) (global.get $tile) (i32.const 32) (i32.const 0))
    (loop $row_loop
      (local.set $from (i32.add (global.get $tile) (i32.mul (local.get $i) (i32.const 32))))
      (local.set $to (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))))
      (local.set $j (local.get $cols))
      (loop $col_loop
        (f32.store (local.get $to) (f32.add (f32.load (local.get $from))
          (if (result f32) (local.get $add) (then (f32.load (local.get $to))) (else (f32.const 0)))))
        (local.set $from (i32.add (local.get $from) (i32.const 4)))
        (local.set $to (i32.add (local.get $to) (i32.const 4)))
        (br_if $col_loop (local.tee $j (i32.sub (local.get $j) (i32.const 1)))))
      (br_if $row_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 1))) (local.get $rows)))))

  ;; All tiles of one slice: C (rows,cols) = or += packed A (rows,depth) packed B (depth,cols).
  (func $multiply_slice (param $rows i32) (param $cols i32) (param $depth i32) (param $c i32) (param $row i32)
                        (param $add i32)
    (local $i i32) (local $j i32) (local $a i32) (local $b i32)
    (local.set $b (global.get $packed_b))
    (loop $j_loop
      (local.set $i (i32.const 0))
      (local.set $a (global.get $packed_a))
      (loop $i_loop
        (if (i32.and (i32.le_s (i32.add (local.get $i) (i32.const 4)) (local.get $rows))
                     (i32.le_s (i32.add (local.get $j) (i32.const 8)) (local.get $cols)))
          (then (call $multiply_tile (local.get $depth) (local.get $a) (local.get $b)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $row) (local.get $add)))
          (else (call $multiply_edge (local.get $depth) (local.get $a) (local.get $b)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $row) (local.get $add)
            (call $min (i32.const 4) (i32.sub (local.get $rows) (local.get $i)))
            (call $min (i32.const 8) (i32.sub (local.get $cols) (local.get $j))))))
        (local.set $a (i32.add (local.get $a) (i32.mul (local.get $depth) (i32.const 16))))
        (br_if $i_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (i32.const 4))) (local.get $rows))))
      (local.set $b (i32.add (local.get $b) (i32.mul (local.get $depth) (i32.const 32))))
      (br_if $j_loop (i32.lt_s (local.tee $j (i32.add (local.get $j) (i32.const 8))) (local.get $cols)))))

  ;; Four lanes at a time, `apart` bytes from one panel to the next.
  (func $pack_panels (param $from i32) (param $lane i32) (param $deep i32) (param $lanes i32) (param $depth i32)
                     (param $to i32) (param $step i32)
    (local $apart i32)
    (local.set $apart (i32.mul (local.get $depth) (local.get $step)))
    (loop $panel
      (call $pack (local.get $from) (local.get $lane) (local.get $deep) (local.get $lanes) (local.get $depth)
        (local.get $to) (local.get $step))
      (if (i32.eq (local.get $step) (i32.const 32))
        (then (call $pack (i32.add (local.get $from) (i32.mul (local.get $lane) (i32.const 4))) (local.get $lane)
          (local.get $deep) (i32.sub (local.get $lanes) (i32.const 4)) (local.get $depth)
          (i32.add (local.get $to) (i32.const 16)) (local.get $step))))
      (local.set $to (i32.add (local.get $to) (local.get $apart)))
      (local.set $from (i32.add (local.get $from) (i32.mul (local.get $lane) (i32.shr_u (local.get $step) (i32.const 2)))))
      (br_if $panel (i32.gt_s
        (local.tee $lanes (i32.sub (local.get $lanes) (i32.shr_u (local.get $step) (i32.const 2)))) (i32.const 0)))))

  ;; C (M,N) = A (M,K) B (K,N), or += where `add` is not 0; a, b, c are array objects, M, N, K ≥ 1. A and B may have
  ;; any strides, rows of C are dense. C overlaps neither.
  (func (export "gemm") (param $M i32) (param $N i32) (param $K i32)
      (param $a i32) (param $a_row i32) (param $a_col i32) (param $b i32) (param $b_row i32) (param $b_col i32)
      (param $c i32) (param $c_row i32) (param $add i32)
    (local $i i32) (local $j i32) (local $k i32) (local $rows i32) (local $cols i32) (local $depth i32)
    (local.set $a (call $data (local.get $a)))
    (local.set $b (call $data (local.get $b)))
    (local.set $c (call $data (local.get $c)))
    (loop $j_loop
      (local.set $cols (call $min (global.get $COLS) (i32.sub (local.get $N) (local.get $j))))
      (local.set $k (i32.const 0))
      (loop $k_loop
        (local.set $depth (call $min (global.get $DEPTH) (i32.sub (local.get $K) (local.get $k))))
        (call $pack_panels
          (i32.add (i32.add (local.get $b) (i32.mul (local.get $j) (local.get $b_col))) (i32.mul (local.get $k) (local.get $b_row)))
          (local.get $b_col) (local.get $b_row) (local.get $cols) (local.get $depth) (global.get $packed_b) (i32.const 32))
        (local.set $i (i32.const 0))
        (loop $i_loop
          (local.set $rows (call $min (global.get $ROWS) (i32.sub (local.get $M) (local.get $i))))
          (call $pack_panels
            (i32.add (i32.add (local.get $a) (i32.mul (local.get $i) (local.get $a_row))) (i32.mul (local.get $k) (local.get $a_col)))
            (local.get $a_row) (local.get $a_col) (local.get $rows) (local.get $depth) (global.get $packed_a) (i32.const 16))
          (call $multiply_slice (local.get $rows) (local.get $cols) (local.get $depth)
            (i32.add (i32.add (local.get $c) (i32.mul (local.get $i) (local.get $c_row))) (i32.mul (local.get $j) (i32.const 4)))
            (local.get $c_row) (i32.or (local.get $add) (i32.gt_s (local.get $k) (i32.const 0))))
          (br_if $i_loop (i32.lt_s (local.tee $i (i32.add (local.get $i) (global.get $ROWS))) (local.get $M))))
        (br_if $k_loop (i32.lt_s (local.tee $k (i32.add (local.get $k) (global.get $DEPTH))) (local.get $K))))
      (br_if $j_loop (i32.lt_s (local.tee $j (i32.add (local.get $j) (global.get $COLS))) (local.get $N)))))

  ;; ---- passes over dense arrays, each in one instead of several ----

  ;; e^x of four numbers, within 2 units in the last place: e^x = 2^n e^r, |r| ≤ ln(2)/2, by a polynomial (Cephes).
  (func $exp (param $x v128) (result v128)
    (local $n v128) (local $r v128)
    (local.set $n (f32x4.nearest (f32x4.mul (f32x4.max (local.get $x) (f32x4.splat (f32.const -87.3)))
      (f32x4.splat (f32.const 1.44269504088896341)))))
    (local.set $r (f32x4.max (local.get $x) (f32x4.splat (f32.const -87.3))))
    (local.set $r (f32x4.sub (local.get $r) (f32x4.mul (local.get $n) (f32x4.splat (f32.const 0.693359375)))))
    (local.set $r (f32x4.add (local.get $r) (f32x4.mul (local.get $n) (f32x4.splat (f32.const 2.12194440e-4)))))
    (v128.andnot
      (f32x4.mul
        (f32x4.add (f32x4.add (f32x4.mul (f32x4.mul (local.get $r) (local.get $r))
          (f32x4.add (f32x4.mul (f32x4.add (f32x4.mul (f32x4.add (f32x4.mul (f32x4.add (f32x4.mul
            (f32x4.add (f32x4.mul (f32x4.splat (f32.const 1.9875691500e-4)) (local.get $r))
              (f32x4.splat (f32.const 1.3981999507e-3))) (local.get $r))
              (f32x4.splat (f32.const 8.3334519073e-3))) (local.get $r))
              (f32x4.splat (f32.const 4.1665795894e-2))) (local.get $r))
              (f32x4.splat (f32.const 1.6666665459e-1))) (local.get $r))
              (f32x4.splat (f32.const 5.0000001201e-1))))
          (local.get $r)) (f32x4.splat (f32.const 1)))
        (i32x4.shl (i32x4.add (i32x4.trunc_sat_f32x4_s (local.get $n)) (i32x4.splat (i32.const 127))) (i32.const 23)))
      (f32x4.lt (local.get $x) (f32x4.splat (f32.const -87.3)))))  ;; so small is 0; NaN stays NaN

  ;; x (rows,cols): best (rows) f32 = the maximum, x = e^(x - best), total (rows) f64 = their sum, x /= total. cols ≥ 4.
  (func (export "softmax_rows") (param $x i32) (param $rows i32) (param $cols i32) (param $best i32) (param $total i32)
    (local $at i32) (local $four i32) (local $end i32) (local $v v128) (local $m v128) (local $sum v128) (local $last f64)
    (local.set $x (call $data (local.get $x)))
    (local.set $best (call $data (local.get $best)))
    (local.set $total (call $data (local.get $total)))
    (loop $row
      (local.set $end (i32.add (local.get $x) (i32.mul (local.get $cols) (i32.const 4))))
      (local.set $four (i32.sub (local.get $end) (i32.const 16)))  ;; where the last whole vector starts
      (local.set $m (v128.load (local.get $four)))
      (local.set $at (local.get $x))
      (loop $max
        (local.set $m (f32x4.max (local.get $m) (v128.load (local.get $at))))
        (br_if $max (i32.le_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $four))))
      (f32.store (local.get $best) (f32.max
        (f32.max (f32x4.extract_lane 0 (local.get $m)) (f32x4.extract_lane 1 (local.get $m)))
        (f32.max (f32x4.extract_lane 2 (local.get $m)) (f32x4.extract_lane 3 (local.get $m)))))
      (local.set $m (v128.load32_splat (local.get $best)))
      (local.set $sum (v128.const f64x2 0 0))
      (local.set $last (f64.const 0))
      (local.set $at (local.get $x))
      (loop $exponential
        (local.set $v (call $exp (f32x4.sub (v128.load (local.get $at)) (local.get $m))))
        (v128.store (local.get $at) (local.get $v))
        (local.set $sum (f64x2.add (local.get $sum) (f64x2.add (f64x2.promote_low_f32x4 (local.get $v))
          (f64x2.promote_low_f32x4
            (i8x16.shuffle 8 9 10 11 12 13 14 15 8 9 10 11 12 13 14 15 (local.get $v) (local.get $v))))))
        (br_if $exponential (i32.le_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $four))))
      (block $whole
        (loop $tail
          (br_if $whole (i32.ge_u (local.get $at) (local.get $end)))
          (local.set $v (call $exp (f32x4.sub (v128.load32_splat (local.get $at)) (local.get $m))))
          (v128.store32_lane 0 (local.get $at) (local.get $v))
          (local.set $last (f64.add (local.get $last) (f64.promote_f32 (f32x4.extract_lane 0 (local.get $v)))))
          (local.set $at (i32.add (local.get $at) (i32.const 4)))
          (br $tail)))
      (f64.store (local.get $total) (f64.add (local.get $last)
        (f64.add (f64x2.extract_lane 0 (local.get $sum)) (f64x2.extract_lane 1 (local.get $sum)))))
      (local.set $m (f32x4.splat (f32.demote_f64 (f64.load (local.get $total)))))
      (local.set $at (local.get $x))
      (loop $divide
        (v128.store (local.get $at) (f32x4.div (v128.load (local.get $at)) (local.get $m)))
        (br_if $divide (i32.le_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $four))))
      (block $divided
        (loop $rest
          (br_if $divided (i32.ge_u (local.get $at) (local.get $end)))
          (f32.store (local.get $at) (f32.div (f32.load (local.get $at)) (f32x4.extract_lane 0 (local.get $m))))
          (local.set $at (i32.add (local.get $at) (i32.const 4)))
          (br $rest)))
      (local.set $x (local.get $end))
      (local.set $best (i32.add (local.get $best) (i32.const 4)))
      (local.set $total (i32.add (local.get $total) (i32.const 8)))
      (br_if $row (local.tee $rows (i32.sub (local.get $rows) (i32.const 1))))))

  ;; h (rows,cols) = max(h + b (cols), 0); cols a multiple of 4.
  (func (export "bias_relu") (param $h i32) (param $b i32) (param $rows i32) (param $cols i32)
    (local $at i32) (local $end i32)
    (local.set $h (call $data (local.get $h)))
    (local.set $b (call $data (local.get $b)))
    (local.set $end (i32.add (local.get $b) (i32.mul (local.get $cols) (i32.const 4))))
    (loop $row
      (local.set $at (local.get $b))
      (loop $col
        (v128.store (local.get $h) (f32x4.max
          (f32x4.add (v128.load (local.get $h)) (v128.load (local.get $at))) (v128.const f32x4 0 0 0 0)))
        (local.set $h (i32.add (local.get $h) (i32.const 16)))
        (br_if $col (i32.lt_u (local.tee $at (i32.add (local.get $at) (i32.const 16))) (local.get $end))))
      (br_if $row (local.tee $rows (i32.sub (local.get $rows) (i32.const 1))))))

  ;; d = d where h > 0, else 0; count a multiple of 4.
  (func (export "relu_mask") (param $d i32) (param $h i32) (param $count i32)
    (local $end i32)
    (local.set $d (call $data (local.get $d)))
    (local.set $h (call $data (local.get $h)))
    (local.set $end (i32.add (local.get $d) (i32.mul (local.get $count) (i32.const 4))))
    (loop $next
      (v128.store (local.get $d) (v128.and (v128.load (local.get $d))
        (f32x4.gt (v128.load (local.get $h)) (v128.const f32x4 0 0 0 0))))
      (local.set $h (i32.add (local.get $h) (i32.const 16)))
      (br_if $next (i32.lt_u (local.tee $d (i32.add (local.get $d) (i32.const 16))) (local.get $end)))))

  ;; Σ (x·scale)² in f64, the product rounded to f32 first; count a multiple of 4. Not finite if any x is not.
  (func (export "sum_of_squares") (param $x i32) (param $count i32) (param $scale f32) (result f64)
    (local $end i32) (local $low v128) (local $high v128) (local $v v128) (local $w v128)
    (local.set $x (call $data (local.get $x)))
    (local.set $end (i32.add (local.get $x) (i32.mul (local.get $count) (i32.const 4))))
    (loop $next
      (local.set $v (f32x4.mul (v128.load (local.get $x)) (f32x4.splat (local.get $scale))))
      (local.set $w (f64x2.promote_low_f32x4
        (i8x16.shuffle 8 9 10 11 12 13 14 15 8 9 10 11 12 13 14 15 (local.get $v) (local.get $v))))
      (local.set $v (f64x2.promote_low_f32x4 (local.get $v)))
      (local.set $low (f64x2.add (local.get $low) (f64x2.mul (local.get $v) (local.get $v))))
      (local.set $high (f64x2.add (local.get $high) (f64x2.mul (local.get $w) (local.get $w))))
      (br_if $next (i32.lt_u (local.tee $x (i32.add (local.get $x) (i32.const 16))) (local.get $end))))
    (local.set $v (f64x2.add (local.get $low) (local.get $high)))
    (f64.add (f64x2.extract_lane 0 (local.get $v)) (f64x2.extract_lane 1 (local.get $v))))

  ;; reference/optim.py's adamw_update on blocks of 64, in its order of operations; a block of group < 0 is left alone.
  (func (export "adamw") (param $p i32) (param $g i32) (param $m i32) (param $v i32) (param $group i32)
      (param $blocks i32) (param $unscale f32) (param $clip f32) (param $beta1 f32) (param $rest1 f32) (param $beta2 f32)
      (param $rest2 f32) (param $correction1 f32) (param $correction2 f32) (param $eps f32) (param $lr f32)
      (param $decay f32)
    (local $end i32) (local $gv v128) (local $mv v128) (local $vv v128) (local $pv v128) (local $own v128)
    (local.set $p (call $data (local.get $p)))
    (local.set $g (call $data (local.get $g)))
    (local.set $m (call $data (local.get $m)))
    (local.set $v (call $data (local.get $v)))
    (local.set $group (call $data (local.get $group)))
    (loop $block
      (local.set $end (i32.add (local.get $p) (i32.const 256)))
      (local.set $own (f32x4.splat (f32.mul (local.get $decay) (f32.load (local.get $group)))))
      (loop $next
        (if (f32.ge (f32.load (local.get $group)) (f32.const 0))
          (then
            (local.set $gv (f32x4.mul (f32x4.mul (v128.load (local.get $g)) (f32x4.splat (local.get $unscale)))
              (f32x4.splat (local.get $clip))))
            (local.set $mv (f32x4.add (f32x4.mul (v128.load (local.get $m)) (f32x4.splat (local.get $beta1)))
              (f32x4.mul (f32x4.splat (local.get $rest1)) (local.get $gv))))
            (local.set $vv (f32x4.add (f32x4.mul (v128.load (local.get $v)) (f32x4.splat (local.get $beta2)))
              (f32x4.mul (f32x4.mul (f32x4.splat (local.get $rest2)) (local.get $gv)) (local.get $gv))))
            (local.set $pv (v128.load (local.get $p)))
            (v128.store (local.get $m) (local.get $mv))
            (v128.store (local.get $v) (local.get $vv))
            (local.set $mv (f32x4.div (f32x4.div (local.get $mv) (f32x4.splat (local.get $correction1)))
              (f32x4.add (f32x4.sqrt (f32x4.div (local.get $vv) (f32x4.splat (local.get $correction2))))
                (f32x4.splat (local.get $eps)))))
            (if (f32.ne (local.get $decay) (f32.const 0))
              (then (local.set $mv (f32x4.add (local.get $mv) (f32x4.mul (local.get $own) (local.get $pv))))))
            (v128.store (local.get $p)
              (f32x4.sub (local.get $pv) (f32x4.mul (f32x4.splat (local.get $lr)) (local.get $mv))))))
        (local.set $g (i32.add (local.get $g) (i32.const 16)))
        (local.set $m (i32.add (local.get $m) (i32.const 16)))
        (local.set $v (i32.add (local.get $v) (i32.const 16)))
        (br_if $next (i32.lt_u (local.tee $p (i32.add (local.get $p) (i32.const 16))) (local.get $end))))
      (local.set $group (i32.add (local.get $group) (i32.const 4)))
      (br_if $block (local.tee $blocks (i32.sub (local.get $blocks) (i32.const 1))))))
)
