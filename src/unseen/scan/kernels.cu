// The sequential part of the scan on a GPU; cuda.py calls it and README.md beside this file derives it.
//
// learn      one thread block cluster per stream, rows of the bank across its threads; one sum over all rows per teacher
// rewrite    the bank after a block: subtract what was learnt, make the rows unit again
// top        best class, its logit and the mass of the rest, from logits in one pass
// observe    Algorithm 1 for one sample in one cooperative launch, with the state resident
//
// Every sum has a fixed order: the same input gives the same bits.

#include <cooperative_groups.h>
#include <cuda_runtime.h>

namespace {

constexpr int PANEL = 8;      // teachers whose pairwise work stays in registers
constexpr int TEACHERS = 128; // most teachers of a block
constexpr int THREADS = 512;  // most threads of a block in learn
constexpr int CLUSTER = 16;   // most blocks of a cluster on Hopper

template <typename T> struct alignas(4 * sizeof(T)) Four {
    T x, y, z, w;
};

__device__ unsigned cluster_rank() {
    unsigned rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
}

__device__ unsigned cluster_size() {
    unsigned size;
    asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
}

__device__ void cluster_sync() {
    asm volatile("barrier.cluster.arrive.release.aligned;\nbarrier.cluster.wait.acquire.aligned;" ::: "memory");
}

__device__ unsigned in_block(const void* local, unsigned rank) {
    unsigned remote;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;"
                 : "=r"(remote)
                 : "r"(static_cast<unsigned>(__cvta_generic_to_shared(local))), "r"(rank));
    return remote;
}

__device__ void store(unsigned remote, float x) {
    asm volatile("st.shared::cluster.f32 [%0], %1;" ::"r"(remote), "f"(x) : "memory");
}

__device__ void store(unsigned remote, double x) {
    asm volatile("st.shared::cluster.f64 [%0], %1;" ::"r"(remote), "d"(x) : "memory");
}

struct Sum {
    static constexpr float nothing = 0;
    template <typename T> static __device__ T join(T a, T b) { return a + b; }
};

struct Max {
    static constexpr float nothing = -3; // below every cosine
    template <typename T> static __device__ T join(T a, T b) { return a > b ? a : b; }
};

template <typename Op, typename T> __device__ T over_warp(T x) {
#pragma unroll
    for (int mask = 16; mask; mask >>= 1) x = Op::join(x, __shfl_xor_sync(~0u, x, mask));
    return x;
}

// Two buffers by turns: whoever writes the next value cannot disturb a reader of this one.
template <typename T> struct Mailbox {
    T warps[2][THREADS / 32];
    T blocks[2][CLUSTER];
};

template <typename Op, typename T> __device__ T over_cluster(T x, Mailbox<T>& mail, int turn) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    x = over_warp<Op>(x);
    if (lane == 0) mail.warps[turn][warp] = x;
    __syncthreads();
    const int blocks = cluster_size();
    if (blocks == 1) {
        T all = mail.warps[turn][0];
        for (int i = 1; i < warps; i++) all = Op::join(all, mail.warps[turn][i]);
        return all;
    }
    if (warp == 0) {
        const T mine = over_warp<Op>(lane < warps ? mail.warps[turn][lane] : T(Op::nothing));
        if (lane < blocks) store(in_block(&mail.blocks[turn][cluster_rank()], lane), mine);
    }
    cluster_sync();
    T all = mail.blocks[turn][0];
    for (int i = 1; i < blocks; i++) all = Op::join(all, mail.blocks[turn][i]);
    return all;
}

__device__ float power(float x) { return exp2f(x); }
__device__ double power(double x) { return exp2(x); }
__device__ float root(float x) { return sqrtf(x); }
__device__ double root(double x) { return sqrt(x); }

template <typename T> struct Lesson {
    const T* cosine;  // [S, N, C] of the teachers with the bank before the block
    const T* gram;    // [S, N, N] between teachers
    const T* aim;     // [S, N, C] target times rate
    const T* rate;    // [S, N] step / kappa
    const int* count; // [S] teachers really there
    T* coef;          // [S, C, width]: what each teacher takes off each row
    T* scale;         // [S, N + 1, C]: the rows' scales after 0, 1, ... N teachers
    long per_cosine, per_gram, per_aim, per_rate, per_count, per_coef, per_scale; // from stream to stream
    int teachers, classes, width, rows; // rows of the bank per thread block
    double kappa;
};

// `ROWS` rows of the bank per thread.
template <typename T, int ROWS> __global__ void __launch_bounds__(THREADS, 1) learn(const Lesson<T> job) {
    __shared__ Mailbox<T> mail;
    __shared__ Four<T> gram[PANEL][TEACHERS / 4];
    const int blocks = cluster_size(), stream = blockIdx.x / blocks, n = job.teachers, classes = job.classes;
    const T* cosine = job.cosine + stream * job.per_cosine;
    const T* aims = job.aim + stream * job.per_aim;
    const T* rates = job.rate + stream * job.per_rate;
    T* scales = job.scale + stream * job.per_scale;
    const int count = job.count[stream * job.per_count];
    const T slope = T(1.4426950408889634 / job.kappa);
    const bool steep = job.kappa < 0.025; // exp((u - 1) / kappa) could underflow for every row

    int row[ROWS];
    bool real[ROWS];
    T scale[ROWS];
    T* coef[ROWS];
#pragma unroll
    for (int r = 0; r < ROWS; r++) {
        const int local = threadIdx.x + r * blockDim.x, mine = cluster_rank() * job.rows + local;
        real[r] = local < job.rows && mine < classes;
        row[r] = real[r] ? mine : 0;
        coef[r] = job.coef + stream * job.per_coef + long(row[r]) * job.width;
        scale[r] = 1;
        if (real[r]) scales[row[r]] = 1;
    }
    if (blocks > 1) cluster_sync(); // nobody writes to a block that has not started

    int turn = 0;
    for (int first = 0; first < n; first += PANEL) {
        T left[ROWS][PANEL], aim[ROWS][PANEL];
#pragma unroll
        for (int r = 0; r < ROWS; r++)
#pragma unroll
            for (int k = 0; k < PANEL; k++) left[r][k] = 0;
        if (first < count) {
#pragma unroll
            for (int r = 0; r < ROWS; r++)
#pragma unroll
                for (int k = 0; k < PANEL; k++) {
                    left[r][k] = cosine[long(first + k) * classes + row[r]];
                    aim[r][k] = aims[long(first + k) * classes + row[r]];
                }
            __syncthreads();
            for (int i = threadIdx.x; i < PANEL * n; i += blockDim.x)
                reinterpret_cast<T*>(gram[i / n])[i % n] = job.gram[stream * job.per_gram + long(first + i / n) * n + i % n];
            __syncthreads();
            for (int j = 0; j < first; j += 4)
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const Four<T> c = *reinterpret_cast<Four<T>*>(coef[r] + j);
#pragma unroll
                    for (int k = 0; k < PANEL; k++) {
                        const Four<T> g = gram[k][j / 4];
                        left[r][k] -= g.x * c.x + g.y * c.y + (g.z * c.z + g.w * c.w);
                    }
                }
#pragma unroll
            for (int k = 0; k < PANEL; k++) {
                const int i = first + k;
                if (i >= count) {
#pragma unroll
                    for (int r = 0; r < ROWS; r++) left[r][k] = 0;
                    continue;
                }
                const T rate = rates[i];
                T u[ROWS], mass[ROWS], sum = 0, shift = 1;
#pragma unroll
                for (int r = 0; r < ROWS; r++) u[r] = scale[r] * left[r][k];
                if (steep) {
                    shift = Max::nothing;
#pragma unroll
                    for (int r = 0; r < ROWS; r++)
                        if (real[r]) shift = Max::join(shift, u[r]);
                    shift = over_cluster<Max>(shift, mail, turn);
                    turn ^= 1;
                }
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    mass[r] = real[r] ? power((u[r] - shift) * slope) : T(0);
                    sum += mass[r];
                }
                sum = over_cluster<Sum>(sum, mail, turn);
                turn ^= 1;
                const T part = rate / sum;
#pragma unroll
                for (int r = 0; r < ROWS; r++) {
                    const T move = mass[r] * part - aim[r][k];
                    left[r][k] = move / scale[r];
                    // |w - move z|^2 needs no pass over w, because |w| = 1 and w.z is u
                    const T square = 1 + move * (move - 2 * u[r]);
                    scale[r] = scale[r] / root(square > T(1e-24) ? square : T(1e-24));
                    if (real[r]) scales[long(i + 1) * classes + row[r]] = scale[r];
#pragma unroll
                    for (int later = k + 1; later < PANEL; later++)
                        left[r][later] -= reinterpret_cast<const T*>(gram[later])[i] * left[r][k];
                }
            }
        }
#pragma unroll
        for (int r = 0; r < ROWS; r++)
            if (real[r]) {
                Four<T>* out = reinterpret_cast<Four<T>*>(coef[r] + first);
                out[0] = {left[r][0], left[r][1], left[r][2], left[r][3]};
                out[1] = {left[r][4], left[r][5], left[r][6], left[r][7]};
            }
    }
}

template <typename T> int launch_learn(const Lesson<T>* job, int streams, int cluster, cudaStream_t queue) {
    Lesson<T> copy = *job;
    copy.rows = (copy.classes + cluster - 1) / cluster;
    void (*kernel)(Lesson<T>) = learn<T, 1>;
    int rows = 1;
    if (copy.rows > 384) kernel = learn<T, 2>, rows = 2;
    if (copy.rows > 2 * 512) kernel = learn<T, 4>, rows = 4;
    if (copy.rows > 4 * 512 || copy.teachers > TEACHERS || copy.teachers % PANEL) return cudaErrorInvalidValue;
    const int threads = ((copy.rows + rows - 1) / rows + 31) / 32 * 32;
    cudaFuncSetAttribute(kernel, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
    cudaLaunchAttribute size;
    size.id = cudaLaunchAttributeClusterDimension;
    size.val.clusterDim.x = cluster, size.val.clusterDim.y = 1, size.val.clusterDim.z = 1;
    cudaLaunchConfig_t config = {};
    config.gridDim = dim3(streams * cluster), config.blockDim = dim3(threads), config.stream = queue;
    config.attrs = &size, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, kernel, copy);
}

// One warp per row: after = unit(before - learnt), or before itself where nobody taught.
template <typename T>
__global__ void rewrite(const T* before, const T* learnt, T* after, const int* count, long per_before, long per_after,
                        long per_count, int classes, int dim, int width, int after_width) {
    const int row = blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= classes) return;
    before += blockIdx.y * per_before + long(row) * width;
    after += blockIdx.y * per_after + long(row) * after_width;
    learnt += (long(blockIdx.y) * classes + row) * dim;
    if (!count[blockIdx.y * per_count]) {
        for (int k = lane; k < dim; k += 32) after[k] = before[k];
        return;
    }
    T square = 0;
    for (int k = lane; k < dim; k += 32) {
        const T x = before[k] - learnt[k];
        square += x * x;
    }
    const T norm = root(over_warp<Sum>(square)), least = T(1e-12);
    for (int k = lane; k < dim; k += 32) after[k] = (before[k] - learnt[k]) / (norm > least ? norm : least);
}

// The best logit, where it is, and the others as largest * sum of exp(other - largest).
template <typename T> struct Best {
    T peak, rest, sum;
    int label;

    __device__ void rejoin(T logit, T weight) {
        const T fall = power(T(-1.4426950408889634) * (rest > logit ? rest - logit : logit - rest));
        sum = logit > rest ? sum * fall + weight : sum + weight * fall;
        rest = logit > rest ? logit : rest;
    }

    __device__ void add(T logit, int index) {
        rejoin(logit > peak ? peak : logit, 1);
        label = logit > peak ? index : label;
        peak = logit > peak ? logit : peak;
    }

    __device__ void join(const Best& other) {
        const bool wins = other.peak > peak || (other.peak == peak && other.label < label);
        rejoin(wins ? peak : other.peak, 1);
        rejoin(other.rest, other.sum);
        label = wins ? other.label : label;
        peak = wins ? other.peak : peak;
    }
};

constexpr float NOTHING = -1e30f; // below every logit, and its exponential is zero beside any of them

template <typename T> __device__ Best<T> best_of_warp(Best<T> best) {
    for (int mask = 16; mask; mask >>= 1)
        best.join({__shfl_xor_sync(~0u, best.peak, mask), __shfl_xor_sync(~0u, best.rest, mask),
                   __shfl_xor_sync(~0u, best.sum, mask), __shfl_xor_sync(~0u, best.label, mask)});
    return best;
}

template <typename T> __device__ T log_of(T x);
template <> __device__ float log_of(float x) { return logf(x); }
template <> __device__ double log_of(double x) { return log(x); }

// One thread block per sample. `scale` may be null: the logits stand as they are.
template <typename T>
__global__ void top(const T* logits, const T* scale, const int* before, long* label, T* peak, T* rest, int classes, int rows,
                    int teachers, double tau) {
    __shared__ Best<T> warps[32];
    const long sample = blockIdx.x;
    const T* row = logits + sample * classes;
    const T* factor = scale ? scale + (sample / rows * (teachers + 1) + before[sample]) * classes : nullptr;
    const T sharp = T(1 / tau);
    Best<T> best = {T(NOTHING), T(NOTHING), T(0), 0x7fffffff};
    for (int c = threadIdx.x; c < classes; c += blockDim.x) best.add(row[c] * (factor ? factor[c] * sharp : sharp), c);
    best = best_of_warp(best);
    if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = best;
    __syncthreads();
    if (threadIdx.x) return;
    for (int i = 1; i < blockDim.x / 32; i++) best.join(warps[i]);
    label[sample] = best.label, peak[sample] = best.peak;
    rest[sample] = best.rest > T(NOTHING) ? best.rest + log_of(best.sum) : T(-INFINITY);
}

struct Resident {
    const float* anchors; // [K + L, d]
    float* bank;          // [K + L, d], written in place
    const float* z;       // [d]
    double* partial;      // [blocks, 8]
    long* seen;           // [2]: samples that taught known, unknown
    double* score;        // log-odds
    long* label;
    int* route;
    unsigned* barrier; // [2]: arrived, generation
    int known, classes, dim;
    double tau, kappa, rho, bound;
};

constexpr int MOST = 1024; // rows of the bank per thread block in observe

__device__ void grid_sync(unsigned* barrier) {
    __syncthreads();
    if (threadIdx.x == 0) {
        volatile unsigned* generation = barrier + 1;
        const unsigned now = *generation;
        __threadfence();
        if (atomicAdd(barrier, 1) == gridDim.x - 1) {
            *barrier = 0;
            __threadfence();
            *generation = now + 1;
        } else {
            while (*generation == now) {}
        }
        __threadfence();
    }
    __syncthreads();
}

// Four sums over the threads of a block, then over all blocks, in a fixed order.
__device__ void over_grid(double (&x)[4], const Resident& job, int slot) {
    __shared__ double warps[4][32];
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll
    for (int q = 0; q < 4; q++) {
        x[q] = over_warp<Sum>(x[q]);
        if (lane == 0) warps[q][warp] = x[q];
    }
    __syncthreads();
    if (warp < 4) {
        const double all = over_warp<Sum>(lane < blockDim.x / 32 ? warps[warp][lane] : 0.0);
        if (lane == 0) job.partial[blockIdx.x * 8 + slot + warp] = all;
    }
    grid_sync(job.barrier);
    if (warp < 4) {
        double all = 0;
        for (int i = lane; i < gridDim.x; i += 32) all += __ldcg(job.partial + i * 8 + slot + warp);
        all = over_warp<Sum>(all);
        if (lane == 0) warps[warp][0] = all;
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 4; q++) x[q] = warps[q][0];
    __syncthreads();
}

// The gate in float64: products of float32 are exact there, so a route depends on nothing but the sample.
__global__ void __launch_bounds__(1024, 1) observe(const Resident job) {
    __shared__ double text[MOST];
    __shared__ float cosine[MOST], moves[MOST];
    const int rows = (job.classes + gridDim.x - 1) / gridDim.x, start = blockIdx.x * rows;
    const int mine = min(rows, job.classes - start), quads = job.dim / 4;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
    const float4* z = reinterpret_cast<const float4*>(job.z);

    for (int i = warp; i < mine; i += warps) {
        const float4* anchor = reinterpret_cast<const float4*>(job.anchors + long(start + i) * job.dim);
        const float4* row = reinterpret_cast<const float4*>(job.bank + long(start + i) * job.dim);
        double t = 0;
        float u = 0;
#pragma unroll 4
        for (int k = lane; k < quads; k += 32) {
            const float4 a = anchor[k], w = row[k], x = z[k];
            t += double(a.x) * x.x + double(a.y) * x.y + (double(a.z) * x.z + double(a.w) * x.w);
            u += w.x * x.x + w.y * x.y + (w.z * x.z + w.w * x.w);
        }
        t = over_warp<Sum>(t), u = over_warp<Sum>(u);
        if (lane == 0) text[i] = t, cosine[i] = u;
    }
    __syncthreads();

    double sums[4] = {0, 0, 0, 0}; // text and bank, known and unknown
    for (int i = threadIdx.x; i < mine; i += blockDim.x) {
        const bool unknown = start + i >= job.known;
        text[i] = exp((text[i] - 1) / job.tau);
        const double mass = exp((double(cosine[i]) - 1) / job.kappa);
        moves[i] = mass;
        sums[unknown] += text[i];
        sums[2 + unknown] += mass;
    }
    over_grid(sums, job, 0);
    const double trust = log(sums[0]) - log(sums[1]);
    const int route = trust >= job.bound ? 1 : trust <= -job.bound ? -1 : 0, side = route < 0;
    const double rate = job.rho / sqrt(double(job.seen[side] + 1)) / job.kappa;
    for (int i = threadIdx.x; i < mine; i += blockDim.x) {
        const bool taught = route && (start + i >= job.known) == side;
        const double move = rate * (moves[i] / sums[2 + side] - text[i] / sums[side]);
        moves[i] = taught ? float(move) : 0.f;
    }
    __syncthreads();

    for (int i = warp; i < mine; i += warps) {
        if (!route || (start + i >= job.known) != side) continue;
        float4* row = reinterpret_cast<float4*>(job.bank + long(start + i) * job.dim);
        const float move = moves[i];
        float square = 0, u = 0;
        auto moved = [&](int k) {
            const float4 w = row[k], x = z[k];
            return make_float4(w.x - move * x.x, w.y - move * x.y, w.z - move * x.z, w.w - move * x.w);
        };
#pragma unroll 4
        for (int k = lane; k < quads; k += 32) {
            const float4 w = moved(k), x = z[k];
            square += w.x * w.x + w.y * w.y + (w.z * w.z + w.w * w.w);
            u += w.x * x.x + w.y * x.y + (w.z * x.z + w.w * x.w);
        }
        const float norm = fmaxf(sqrtf(over_warp<Sum>(square)), 1e-12f);
        u = over_warp<Sum>(u);
#pragma unroll 4
        for (int k = lane; k < quads; k += 32) {
            const float4 w = moved(k);
            row[k] = make_float4(w.x / norm, w.y / norm, w.z / norm, w.w / norm);
        }
        if (lane == 0) cosine[i] = u / norm;
    }
    __syncthreads();

    // the largest known logit rides along as two numbers: each block's peak and where it is
    double masses[4] = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < mine; i += blockDim.x)
        masses[start + i >= job.known] += exp((double(cosine[i]) - 1) / job.tau);
    if (warp == 0) {
        Best<float> best = {NOTHING, NOTHING, 0, 0x7fffffff};
        for (int i = lane; i < mine && start + i < job.known; i += 32)
            if (cosine[i] > best.peak) best.peak = cosine[i], best.label = start + i;
        for (int mask = 16; mask; mask >>= 1) {
            const float peak = __shfl_xor_sync(~0u, best.peak, mask);
            const int label = __shfl_xor_sync(~0u, best.label, mask);
            if (peak > best.peak || (peak == best.peak && label < best.label)) best.peak = peak, best.label = label;
        }
        if (lane == 0) job.partial[(gridDim.x + blockIdx.x) * 8] = best.peak;
        if (lane == 0) job.partial[(gridDim.x + blockIdx.x) * 8 + 1] = best.label;
    }
    over_grid(masses, job, 4);
    if (blockIdx.x || threadIdx.x) return;
    double peak = NOTHING, label = 0;
    for (int i = 0; i < gridDim.x; i++) {
        const double other = __ldcg(job.partial + (gridDim.x + i) * 8);
        if (other > peak) peak = other, label = __ldcg(job.partial + (gridDim.x + i) * 8 + 1);
    }
    *job.score = log(masses[0]) - log(masses[1]);
    *job.label = long(label), *job.route = route;
    if (route) job.seen[side] += 1;
}

} // namespace

#define EXPORT(T, NAME)                                                                                                    \
    extern "C" int learn_##NAME(const Lesson<T>* job, int streams, int cluster, cudaStream_t queue) {                      \
        return launch_learn(job, streams, cluster, queue);                                                                 \
    }                                                                                                                      \
    extern "C" int rewrite_##NAME(const T* before, const T* learnt, T* after, const int* count, long per_before,           \
                                  long per_after, long per_count, int streams, int classes, int dim, int width,            \
                                  int after_width, cudaStream_t queue) {                                                   \
        rewrite<<<dim3((classes + 7) / 8, streams), 256, 0, queue>>>(before, learnt, after, count, per_before, per_after,  \
                                                                     per_count, classes, dim, width, after_width);         \
        return cudaGetLastError();                                                                                         \
    }                                                                                                                      \
    extern "C" int top_##NAME(const T* logits, const T* scale, const int* before, long* label, T* peak, T* rest,           \
                              long samples, int classes, int rows, int teachers, double tau, cudaStream_t queue) {         \
        top<<<samples, classes > 2048 ? 256 : 128, 0, queue>>>(logits, scale, before, label, peak, rest, classes, rows,    \
                                                               teachers, tau);                                             \
        return cudaGetLastError();                                                                                         \
    }

EXPORT(float, float32)
EXPORT(double, float64)

extern "C" int observe_blocks(int* blocks) {
    int device;
    cudaGetDevice(&device);
    return cudaDeviceGetAttribute(blocks, cudaDevAttrMultiProcessorCount, device);
}

extern "C" int observe_float32(const Resident* job, int blocks, cudaStream_t queue) {
    void* arguments[] = {const_cast<Resident*>(job)};
    return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(observe), dim3(blocks), dim3(1024), arguments, 0, queue);
}
