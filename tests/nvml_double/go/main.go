// Lists GPUs and MIG devices as NVIDIA's own Go bindings see them, as JSON: one more client of the NVML double.
package main

import (
	"encoding/json"
	"fmt"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

type slice struct {
	UUID      string `json:"uuid"`
	Instance  int    `json:"gi"`
	MemoryMiB uint64 `json:"memory_mib"`
}

type gpu struct {
	UUID      string  `json:"uuid"`
	Name      string  `json:"name"`
	Minor     int     `json:"minor"`
	MemoryMiB uint64  `json:"memory_mib"`
	Mig       bool    `json:"mig"`
	Slices    []slice `json:"slices"`
}

func must(ret nvml.Return, call string) {
	if ret != nvml.SUCCESS {
		fmt.Fprintf(os.Stderr, "%s: %s\n", call, nvml.ErrorString(ret))
		os.Exit(1)
	}
}

func slicesOf(device nvml.Device) []slice {
	found := []slice{}
	count, ret := device.GetMaxMigDeviceCount()
	must(ret, "GetMaxMigDeviceCount")
	for index := 0; index < count; index++ {
		mig, ret := device.GetMigDeviceHandleByIndex(index)
		if ret == nvml.ERROR_NOT_FOUND {
			continue
		}
		must(ret, "GetMigDeviceHandleByIndex")
		uuid, ret := mig.GetUUID()
		must(ret, "GetUUID")
		instance, ret := mig.GetGpuInstanceId()
		must(ret, "GetGpuInstanceId")
		attributes, ret := mig.GetAttributes()
		must(ret, "GetAttributes")
		found = append(found, slice{uuid, instance, attributes.MemorySizeMB})
	}
	return found
}

func main() {
	must(nvml.Init(), "Init")
	defer nvml.Shutdown()
	count, ret := nvml.DeviceGetCount()
	must(ret, "DeviceGetCount")
	found := []gpu{}
	for index := 0; index < count; index++ {
		device, ret := nvml.DeviceGetHandleByIndex(index)
		must(ret, "DeviceGetHandleByIndex")
		uuid, ret := device.GetUUID()
		must(ret, "GetUUID")
		name, ret := device.GetName()
		must(ret, "GetName")
		minor, ret := device.GetMinorNumber()
		must(ret, "GetMinorNumber")
		memory, ret := device.GetMemoryInfo()
		must(ret, "GetMemoryInfo")
		mode, _, ret := device.GetMigMode()
		must(ret, "GetMigMode")
		slices := []slice{}
		if mode == nvml.DEVICE_MIG_ENABLE {
			slices = slicesOf(device)
		}
		found = append(found, gpu{uuid, name, minor, memory.Total >> 20, mode == nvml.DEVICE_MIG_ENABLE, slices})
	}
	json.NewEncoder(os.Stdout).Encode(found)
}
