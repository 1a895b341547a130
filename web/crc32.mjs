// CRC-32 (IEEE 802.3, as in zip, PNG and Python's zlib.crc32) of bytes. Nothing else lives here.

/** Eight tables of 256: table[k] advances a byte that stands k bytes before the end of an 8-byte block. */
const TABLES = makeTables();

function makeTables() {
  const tables = Array.from({ length: 8 }, () => new Uint32Array(256));
  for (let i = 0; i < 256; i++) {
    let c = i;
    for (let bit = 0; bit < 8; bit++) c = c & 1 ? (c >>> 1) ^ 0xedb88320 : c >>> 1;
    tables[0][i] = c;
  }
  for (let i = 0; i < 256; i++) {
    for (let k = 1; k < 8; k++) tables[k][i] = (tables[k - 1][i] >>> 8) ^ tables[0][tables[k - 1][i] & 255];
  }
  return tables;
}

/**
 * CRC-32 of `bytes` as an unsigned integer: 0xCBF43926 for "123456789", 0 for no bytes.
 * JavaScript's bit operations give signed numbers, hence the `>>> 0` at the end.
 * @param {Uint8Array} bytes
 * @returns {number} 0 … 2³²−1
 */
export function crc32(bytes) {
  const [t0, t1, t2, t3, t4, t5, t6, t7] = TABLES;
  const end = bytes.length;
  let crc = -1;
  let i = 0;
  for (; i + 8 <= end; i += 8) {
    crc ^= bytes[i] | (bytes[i + 1] << 8) | (bytes[i + 2] << 16) | (bytes[i + 3] << 24);
    crc =
      t7[crc & 255] ^ t6[(crc >>> 8) & 255] ^ t5[(crc >>> 16) & 255] ^ t4[crc >>> 24] ^
      t3[bytes[i + 4]] ^ t2[bytes[i + 5]] ^ t1[bytes[i + 6]] ^ t0[bytes[i + 7]];
  }
  for (; i < end; i++) crc = t0[(crc ^ bytes[i]) & 255] ^ (crc >>> 8);
  return ~crc >>> 0;
}
