// observe: Algorithm 1 for one sample in one cooperative launch, with the state kept on the GPU; resident.py calls it.
//
// Every sum has a fixed order: the same input gives the same bits.

#include "../src/unseen/scan/cuda/kernels.cu"

namespace unseen {

struct Resident {
    const float* anchors; // [K + L, d]
    float* bank;          // [K + L, d], written in place
    const float* z;       // [d]
    double* partial;      // [blocks, 8]: four sums of each of two rounds
    float* peak;          // [blocks]: the best known cosine of each thread block, and where it is
    int* where;           // [blocks]
    long* seen;           // [2]: samples that taught known, unknown
    double* score;        // log-odds
    long* label;
    int* route;
    unsigned* barrier; // [2]: arrived, generation
    int known, classes, dim;
    double tau, kappa, rho, bound;
};

constexpr int MOST = 1024; // rows of the bank per thread block in observe
constexpr int TOGETHER = 3; // rows a warp reads at once

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
#pragma unroll 8
        for (int i = lane; i < gridDim.x; i += 32) all += __ldcg(job.partial + i * 8 + slot + warp);
        all = over_warp<Sum>(all);
        if (lane == 0) warps[warp][0] = all;
    }
    __syncthreads();
#pragma unroll
    for (int q = 0; q < 4; q++) x[q] = warps[q][0];
    __syncthreads();
}

__device__ void best_of_warp(float& peak, int& where) {
    for (int mask = 16; mask; mask >>= 1) {
        const float other = __shfl_xor_sync(~0u, peak, mask);
        const int place = __shfl_xor_sync(~0u, where, mask);
        if (other > peak || (other == peak && place < where)) peak = other, where = place;
    }
}

// Rows go round the thread blocks, so that each has its part of both banks. The gate is in float64: products of float32
// are exact there, so a route depends on nothing but the sample.
__global__ void __launch_bounds__(512, 1) observe(const Resident job) {
    __shared__ double text[MOST];
    __shared__ float cosine[MOST], moves[MOST];
    const int start = blockIdx.x, stride = gridDim.x, mine = (job.classes - start + stride - 1) / stride;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32, quads = job.dim / 4;
    const float4* const z = reinterpret_cast<const float4*>(job.z);
    const double sharp = 1 / job.tau, soft = 1 / job.kappa;
    auto row_of = [&](float* from, int i) { return reinterpret_cast<float4*>(from + long(start + i * stride) * job.dim); };

    for (int i = warp; i < mine; i += TOGETHER * warps) {
        const float4 *anchor[TOGETHER], *row[TOGETHER];
        double t[TOGETHER] = {};
        float u[TOGETHER] = {};
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            const int at = min(i + r * warps, mine - 1);
            anchor[r] = row_of(const_cast<float*>(job.anchors), at), row[r] = row_of(job.bank, at);
        }
#pragma unroll 2
        for (int k = lane; k < quads; k += 32) {
            const float4 x = z[k];
#pragma unroll
            for (int r = 0; r < TOGETHER; r++) {
                const float4 a = __ldcg(anchor[r] + k), w = __ldcg(row[r] + k);
                t[r] += double(a.x) * double(x.x) + double(a.y) * double(x.y) +
                        (double(a.z) * double(x.z) + double(a.w) * double(x.w));
                u[r] += w.x * x.x + w.y * x.y + (w.z * x.z + w.w * x.w);
            }
        }
#pragma unroll
        for (int r = 0; r < TOGETHER; r++) {
            t[r] = over_warp<Sum>(t[r]), u[r] = over_warp<Sum>(u[r]);
            if (lane == 0 && i + r * warps < mine) text[i + r * warps] = t[r], cosine[i + r * warps] = u[r];
        }
    }
    __syncthreads();

    double sums[4] = {0, 0, 0, 0}; // text and bank, known and unknown
    for (int i = threadIdx.x; i < mine; i += blockDim.x) {
        const bool unknown = start + i * stride >= job.known;
        text[i] = exp((text[i] - 1) * sharp);
        const double mass = exp((double(cosine[i]) - 1) * soft);
        moves[i] = mass;
        sums[unknown] += text[i], sums[2 + unknown] += mass;
    }
    over_grid(sums, job, 0);
    const double trust = log(sums[0] / sums[1]);
    const int route = trust >= job.bound ? 1 : trust <= -job.bound ? -1 : 0, side = route < 0;
    const double rate = job.rho / sqrt(double(job.seen[side] + 1)) * soft;
    const double pulled = rate / sums[2 + side], aimed = rate / sums[side];

    for (int i = warp; i < mine; i += warps) {
        if (!route || (start + i * stride >= job.known) != side) continue;
        float4* const row = row_of(job.bank, i);
        const float move = float(moves[i] * pulled - text[i] * aimed);
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

    double masses[4] = {0, 0, 0, 0};
    for (int i = threadIdx.x; i < mine; i += blockDim.x)
        masses[start + i * stride >= job.known] += exp((double(cosine[i]) - 1) * sharp);
    if (warp == 0) {
        float peak = NOTHING;
        int where = job.known;
        for (int i = lane; i < mine && start + i * stride < job.known; i += 32)
            if (cosine[i] > peak) peak = cosine[i], where = start + i * stride;
        best_of_warp(peak, where);
        if (lane == 0) job.peak[blockIdx.x] = peak, job.where[blockIdx.x] = where;
    }
    over_grid(masses, job, 4);
    if (blockIdx.x || warp) return;
    float peak = NOTHING;
    int where = job.known;
    for (int i = lane; i < gridDim.x; i += 32) {
        const float other = __ldcg(job.peak + i);
        const int place = __ldcg(job.where + i);
        if (other > peak || (other == peak && place < where)) peak = other, where = place;
    }
    best_of_warp(peak, where);
    if (lane) return;
    *job.score = log(masses[0] / masses[1]), *job.label = where, *job.route = route;
    if (route) job.seen[side] += 1;
}

} // namespace unseen

extern "C" int observe_float32(const Resident* job, int blocks, cudaStream_t queue) {
    void* arguments[] = {const_cast<Resident*>(job)};
    return cudaLaunchCooperativeKernel(reinterpret_cast<void*>(observe), dim3(blocks), dim3(512), arguments, 0, queue);
}
