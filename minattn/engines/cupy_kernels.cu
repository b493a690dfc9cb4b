// The kernels of the cupy engine. Each fuses what the reference engine does in several passes over
// memory. Compiled once with REAL as double and once as float.
//
// Arrays are C-contiguous. Where a kernel takes rows, a warp takes one row, its lanes every 32nd
// entry, and a block as many rows as it has warps; where it takes entries, a thread takes one. No
// sum depends on the order in which threads run: the same input gives the same bits.

#define EVERY_LANE 0xffffffffu
#define MINUS_INFINITY ((REAL)__int_as_float(0xff800000u))
#define TILE 128  // threads a block of embedding_gradient

__device__ REAL warp_sum(REAL value) {
    for (int offset = 16; offset > 0; offset /= 2)
        value += __shfl_xor_sync(EVERY_LANE, value, offset);
    return value;
}

__device__ REAL warp_max(REAL value) {
    for (int offset = 16; offset > 0; offset /= 2) {
        REAL other = __shfl_xor_sync(EVERY_LANE, value, offset);
        value = other > value ? other : value;
    }
    return value;
}

__device__ long long row_of_warp() {
    return (long long)blockIdx.x * blockDim.y + threadIdx.y;
}

__device__ long long entry_of_thread() {
    return (long long)blockIdx.x * blockDim.x + threadIdx.x;
}

// Softmax of scale * scores (rows, size) over the allowed keys (size, size); out may be scores.
extern "C" __global__ void masked_softmax(
    long long rows, const REAL* scores, const bool* allowed, REAL* out, long long size,
    double scale) {
    long long row = row_of_warp();
    if (row >= rows) return;
    scores += row * size;
    out += row * size;
    allowed += row % size * size;
    REAL top = MINUS_INFINITY, total = 0;
    for (long long j = threadIdx.x; j < size; j += 32) {
        if (allowed[j]) {
            REAL z = scores[j] * (REAL)scale;
            top = z > top ? z : top;
        }
    }
    top = warp_max(top);
    for (long long j = threadIdx.x; j < size; j += 32) {
        REAL weight = allowed[j] ? exp(scores[j] * (REAL)scale - top) : (REAL)0;
        out[j] = weight;
        total += weight;
    }
    total = warp_sum(total);
    // A row without an allowed key has a total of zero, and weights of zero.
    for (long long j = threadIdx.x; j < size; j += 32)
        if (allowed[j]) out[j] /= total;
}

// scale A (dA - sum_k A dA) (rows, size), zero where not allowed; out may be dA.
extern "C" __global__ void masked_softmax_backward(
    long long rows, const REAL* weights, const REAL* d_weights, const bool* allowed, REAL* out,
    long long size, double scale) {
    long long row = row_of_warp();
    if (row >= rows) return;
    weights += row * size;
    d_weights += row * size;
    out += row * size;
    allowed += row % size * size;
    REAL mean = 0;
    for (long long j = threadIdx.x; j < size; j += 32)
        if (allowed[j]) mean += weights[j] * d_weights[j];
    mean = warp_sum(mean);
    for (long long j = threadIdx.x; j < size; j += 32)
        out[j] = allowed[j] ? (REAL)scale * weights[j] * (d_weights[j] - mean) : (REAL)0;
}

// Weighted loss of each row of logits (rows, symbols), and its gradient; out may be logits.
extern "C" __global__ void cross_entropy(
    long long rows, const REAL* logits, const long long* targets, const REAL* weights,
    REAL* losses, REAL* out, long long symbols) {
    long long row = row_of_warp();
    if (row >= rows) return;
    logits += row * symbols;
    out += row * symbols;
    long long target = targets[row];
    REAL weight = weights[row];
    if (!(weight > 0)) {
        for (long long v = threadIdx.x; v < symbols; v += 32) out[v] = 0;
        if (threadIdx.x == 0) losses[row] = 0;
        return;
    }
    REAL top = MINUS_INFINITY, total = 0, chosen = logits[target];
    for (long long v = threadIdx.x; v < symbols; v += 32) top = logits[v] > top ? logits[v] : top;
    top = warp_max(top);
    for (long long v = threadIdx.x; v < symbols; v += 32) total += exp(logits[v] - top);
    total = warp_sum(total);  // after which no lane has the target's logit left to read
    for (long long v = threadIdx.x; v < symbols; v += 32)
        out[v] = weight * (exp(logits[v] - top) / total - (REAL)(v == target));
    if (threadIdx.x == 0) losses[row] = weight * (log(total) - (chosen - top));
}

// Rows of table (R, rows, d) that tokens (R, T) name, (R, T, d).
extern "C" __global__ void embedding(
    long long entries, const REAL* table, const long long* tokens, REAL* out, long long T,
    long long rows, long long d) {
    long long entry = entry_of_thread();
    if (entry >= entries) return;
    long long token = entry / d, replica = token / T;
    out[entry] = table[(replica * rows + tokens[token]) * d + entry % d];
}

// Sum of dx (R, T, d) over the tokens (R, T) of one row, in their order: block (row, replica) of
// grid (rows, R), a thread for every TILE-th column.
extern "C" __global__ void embedding_gradient(
    const long long* tokens, const REAL* dx, REAL* out, long long T, long long d) {
    __shared__ bool ours[TILE];
    long long row = blockIdx.x, replica = blockIdx.y;
    tokens += replica * T;
    dx += replica * T * d;
    out += (replica * gridDim.x + row) * d;
    for (long long first = 0; first < d; first += TILE) {
        long long column = first + threadIdx.x;
        REAL sum = 0;
        for (long long start = 0; start < T; start += TILE) {
            long long t = start + threadIdx.x;
            ours[threadIdx.x] = t < T && tokens[t] == row;
            if (__syncthreads_count(ours[threadIdx.x]) && column < d)
                for (int i = 0; i < TILE; i++)
                    if (ours[i]) sum += dx[(start + i) * d + column];
            __syncthreads();
        }
        if (column < d) out[column] = sum;
    }
}

// AdamW on every entry: the moments, then value = shrink value - step_size m / (sqrt(s c) + eps).
extern "C" __global__ void adamw(
    long long entries, REAL* value, const REAL* gradient, REAL* mean, REAL* square, double beta1,
    double beta2, double step_size, double inverse_correction, double epsilon, double shrink) {
    long long i = entry_of_thread();
    if (i >= entries) return;
    REAL g = gradient[i];
    REAL m = (REAL)beta1 * mean[i] + (REAL)(1 - beta1) * g;
    REAL s = (REAL)beta2 * square[i] + (REAL)(1 - beta2) * g * g;
    mean[i] = m;
    square[i] = s;
    value[i] = (REAL)shrink * value[i]
        - (REAL)step_size * m / (sqrt(s * (REAL)inverse_correction) + (REAL)epsilon);
}

// Set *found to 1 if an entry is infinite or NaN.
extern "C" __global__ void find_non_finite(long long entries, const REAL* values, int* found) {
    long long i = entry_of_thread();
    if (i < entries && !(values[i] - values[i] == 0)) *found = 1;
}
