// Float weights: a panel is [k][16] values; activations stay float32. Element k of a row goes to partial sum k % 4 by
// fma, and the result is (s0 + s1) + (s2 + s3).

struct LoadF32 {
    static constexpr int64_t kBytes = 4;
    static vf load(const uint8_t* p) { return vf_load(reinterpret_cast<const float*>(p)); }
};
struct LoadF16 {
    static constexpr int64_t kBytes = 2;
    static vf load(const uint8_t* p) { return vf_load_f16(p); }
};
struct LoadBF16 {
    static constexpr int64_t kBytes = 2;
    static vf load(const uint8_t* p) { return vf_load_bf16(p); }
};

constexpr int kFloatTile = kLanes == 8 ? 2 : 6;  // rows of x whose 4 partial sums fit the registers

// y[0 .. lanes) = v + bias, where lanes < kLanes at the right edge of the matrix.
inline void store_lanes(float* y, vf v, int64_t lanes, const float* bias) {
    if (lanes >= kLanes) {
        vf_store(y, bias ? vf_add(v, vf_load(bias)) : v);
        return;
    }
    float values[kLanes];
    vf_store(values, v);
    for (int64_t i = 0; i < lanes; i++) y[i] = bias ? values[i] + bias[i] : values[i];
}

template <class W, int M>
void float_tile(const uint8_t* panel, const float* x, size_t ldx, int64_t k, float* y, size_t ldy, int64_t lanes,
                const float* bias) {
    for (int64_t lane = 0; lane < lanes; lane += kLanes) {
        vf sum[M][4];
        for (int i = 0; i < M; i++)
            for (int c = 0; c < 4; c++) sum[i][c] = vf_zero();
        const uint8_t* w = panel + lane * W::kBytes;
        int64_t j = 0;
        for (; j + 4 <= k; j += 4) {
            for (int c = 0; c < 4; c++) {
                const vf wv = W::load(w + (j + c) * (kPanelRows * W::kBytes));
                for (int i = 0; i < M; i++) sum[i][c] = vf_fma(wv, vf_set(x[static_cast<size_t>(i) * ldx + static_cast<size_t>(j + c)]), sum[i][c]);
            }
        }
        for (int c = 0; c < 3 && j + c < k; c++) {
            const vf wv = W::load(w + (j + c) * (kPanelRows * W::kBytes));
            for (int i = 0; i < M; i++) sum[i][c] = vf_fma(wv, vf_set(x[static_cast<size_t>(i) * ldx + static_cast<size_t>(j + c)]), sum[i][c]);
        }
        for (int i = 0; i < M; i++) {
            const vf total = vf_add(vf_add(sum[i][0], sum[i][1]), vf_add(sum[i][2], sum[i][3]));
            store_lanes(y + static_cast<size_t>(i) * ldy + lane, total, lanes - lane, bias ? bias + lane : nullptr);
        }
    }
}

template <class W, int M>
void float_rows(const uint8_t* panel, const float* x, size_t ldx, int64_t m, int64_t k, float* y, size_t ldy,
                int64_t lanes, const float* bias) {
    int64_t i = 0;
    for (; i + M <= m; i += M)
        float_tile<W, M>(panel, x + static_cast<size_t>(i) * ldx, ldx, k, y + static_cast<size_t>(i) * ldy, ldy, lanes, bias);
    if constexpr (M > 1) {
        if (i < m)
            float_rows<W, M - 1>(panel, x + static_cast<size_t>(i) * ldx, ldx, m - i, k, y + static_cast<size_t>(i) * ldy, ldy, lanes, bias);
    }
}

template <class W>
void matmul_float(const PackedMatrix& w, const Activations& a, float* y, size_t ldy, int64_t n_begin, int64_t n_end,
                  const float* bias) {
    const auto bytes = static_cast<size_t>(panel_bytes(w.type, w.k));
    for (int64_t n = n_begin; n < n_end; n += kPanelRows) {
        const int64_t lanes = n_end - n < kPanelRows ? n_end - n : kPanelRows;
        const uint8_t* panel = w.data + static_cast<size_t>(n / kPanelRows) * bytes;
        float_rows<W, kFloatTile>(panel, a.x, a.ldx, a.m, w.k, y + n, ldy, lanes, bias ? bias + n : nullptr);
    }
}

template <class W>
void dequantize_float(const PackedMatrix& w, int64_t row, float* out) {
    const uint8_t* panel = w.data + static_cast<size_t>(row / kPanelRows) * static_cast<size_t>(panel_bytes(w.type, w.k));
    const int64_t lane = row % kPanelRows;
    for (int64_t k = 0; k < w.k; k++) {
        float values[kLanes];
        vf_store(values, W::load(panel + (k * kPanelRows + lane / kLanes * kLanes) * W::kBytes));
        out[k] = values[lane % kLanes];
    }
}
